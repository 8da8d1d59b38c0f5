"""What a person does in the webserver: backfill all shards, see one red, try it again in both ways there are, see it green.

The two ways: the asset page's dialogue with `Failed`, and `Re-execute from failure` in the menu of the backfill's own page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import screenshot
from tests.support.project import Project, make_project, recipe_data, simulator
from tests.support.webserver import Webserver, make_upstream

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

REFUSED = {"status": 400, "json": {"error": {"message": "planted: this request is refused"}}}
# The first request of the backfill is refused, and so is the first one of the next launch.
SCRIPT = [REFUSED, *[{"json_content": "It flows."}] * 47, REFUSED]
SHARDS = [f"shard-{number:05d}" for number in range(6)]
ASSET = ("small", "completions")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("browser")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    with simulator("--mean-tokens", "20", "--script", str(script)) as url:
        project = make_project(folder / "project", recipe_data({"kind": "sglang", "servers": [{"url": url}]}))
        make_upstream(project)
        yield project


BACKFILLS = "query { partitionBackfillsOrError { ... on PartitionBackfills { results { id status numPartitions } } } }"
RUNS = "query { runsOrError { ... on Runs { results { runId status } } } }"


def open_shards(page: Page, server: Webserver) -> None:
    page.goto(f"{server.url}/assets/{'/'.join(ASSET)}?view=partitions")
    page.get_by_text(re.compile(r"^Materialized \(\d+\)$")).wait_for()


def counts(page: Page) -> dict[str, int]:
    """Number of shards by state, as the page says."""
    shown = re.findall(r"(Failed|Materialized|Materializing|Missing) \((\d+)\)", page.inner_text("body"))
    return {state.lower(): int(number) for state, number in shown}


def colours(page: Page) -> dict[str, str]:
    """Colour of each shard's dot: red, green or grey, from the pixels' own values."""
    found: dict[str, str] = {}
    for shard in SHARDS:
        dot = page.locator(f'[data-tooltip="{shard}"] + div')
        red, green, blue = map(int, re.findall(r"\d+", dot.evaluate("dot => getComputedStyle(dot).backgroundColor"))[:3])
        found[shard] = "red" if red > 2 * max(green, blue) else "green" if green > 1.2 * max(red, blue) else "grey"
    return found


def launch(page: Page, selection: str) -> str:
    """Click through the asset page's dialogue for `All` or `Failed` shards; returns what the button said."""
    page.get_by_role("button", name="Materialize…").click()
    page.get_by_role("button", name=selection, exact=True).click()
    button = page.get_by_role("button", name=re.compile("^Launch"))
    page.wait_for_function(
        "label => [...document.querySelectorAll('button')].some(b => b.innerText.startsWith(label) && !b.disabled)", arg="Launch"
    )
    screenshot(page, f"launch-{selection.lower()}")
    said = button.inner_text()
    button.click()
    button.wait_for(state="hidden")
    return said


def ended_runs(server: Webserver) -> list[str]:
    """Runs that came to an end, good or bad."""
    return [run["runId"] for run in server.ask(RUNS)["runsOrError"]["results"] if run["status"] in ("SUCCESS", "FAILURE", "CANCELED")]


def test_before_anything_ran_all_shards_are_missing(page: Page, server: Webserver) -> None:
    open_shards(page, server)
    assert counts(page) == {"failed": 0, "materialized": 0, "materializing": 0, "missing": 6}
    assert set(colours(page).values()) == {"grey"}


def test_a_backfill_of_all_shards_leaves_the_planted_one_red(page: Page, server: Webserver, project: Project) -> None:
    open_shards(page, server)
    launch(page, "All")
    shards = server.wait_for(
        "five shards green and one red", lambda: server.shards(*ASSET), lambda s: len(s["materialized"]) == 5 and len(s["failed"]) == 1, 150
    )
    [failed] = shards["failed"]
    open_shards(page, server)
    assert counts(page) == {"failed": 1, "materialized": 5, "materializing": 0, "missing": 0}
    assert colours(page) == {shard: "red" if shard == failed else "green" for shard in SHARDS}
    page.get_by_text(failed).first.click()
    page.get_by_text(re.compile("failed, and did not materialize this asset")).wait_for()
    page.get_by_text("Hide navigation").click()
    page.wait_for_timeout(500)  # it slides
    screenshot(page, "failed-shard", height=480)
    assert project.progress()["requests_sent"] == 48


def test_the_check_says_which_shard_failed_and_why(page: Page, server: Webserver) -> None:
    [failed] = server.shards(*ASSET)["failed"]
    page.goto(f"{server.url}/assets/{'/'.join(ASSET)}?view=checks&checkDetail=answered")
    page.get_by_text("Every prompt of the shard ended").first.wait_for()
    assert re.search(r"\banswered\s+Failed\b", page.inner_text("body"))
    page.get_by_text("Execution history").click()
    # One evaluation a shard; the failed one stands with its shard and the server's own words.
    row = page.locator("tr", has_text=failed).first
    row.wait_for()
    screenshot(page, "check-history")
    assert "Failed" in row.inner_text()
    row.get_by_role("button").last.click()
    page.get_by_text("planted: this request is refused").first.wait_for()


def test_the_asset_page_launches_the_failed_shard_alone(page: Page, server: Webserver, project: Project) -> None:
    open_shards(page, server)
    [failed] = server.shards(*ASSET)["failed"]
    runs = ended_runs(server)
    assert launch(page, "Failed") == "Launch 1 run"
    server.wait_for("an end of the run", lambda: ended_runs(server), lambda found: len(found) == len(runs) + 1, 90)
    # It was refused once more: still red, and nothing else was asked.
    assert server.shards(*ASSET)["failed"] == [failed]
    assert project.progress()["requests_sent"] == 1
    assert project.progress()["cached"] == 7


def test_re_execute_from_failure_on_the_backfills_page_turns_it_green(page: Page, server: Webserver, project: Project) -> None:
    [backfill] = server.ask(BACKFILLS)["partitionBackfillsOrError"]["results"]
    page.goto(f"{server.url}/runs/b/{backfill['id']}")
    page.get_by_text("100% completed").wait_for()
    page.locator("button").filter(has_not_text=re.compile(r"\S")).last.click()  # the menu's button has a picture and no name
    entry = page.get_by_text("Re-execute from failure", exact=True)
    entry.wait_for()
    screenshot(page, "backfill-menu")
    entry.click()
    page.get_by_text(re.compile("^Created backfill")).wait_for()
    server.wait_for("all six shards green", lambda: server.shards(*ASSET), lambda s: s["materialized"] == SHARDS and not s["failed"], 150)
    open_shards(page, server)
    screenshot(page, "all-green")
    assert counts(page) == {"failed": 0, "materialized": 6, "materializing": 0, "missing": 0}
    assert set(colours(page).values()) == {"green"}
    again = next(found for found in server.ask(BACKFILLS)["partitionBackfillsOrError"]["results"] if found["id"] != backfill["id"])
    assert again["numPartitions"] == 1, "the failed shard and no other"
    assert project.progress()["requests_sent"] == 1
    assert project.progress()["cached"] == 7


def test_the_graph_shows_the_flow_in_order(page: Page, server: Webserver) -> None:
    page.goto(f"{server.url}/asset-groups")
    page.get_by_text("small_1_sources").first.wait_for()
    listed = [line for line in page.inner_text("body").splitlines() if re.fullmatch(r"small_\d_\w+", line)]
    in_order = [
        f"small_{n}_{stage}"
        for n, stage in enumerate(("sources", "blend", "completions", "verdicts", "training_set", "exports", "report"), 1)
    ]
    assert list(dict.fromkeys(listed)) == in_order
    screenshot(page, "graph")


def test_nothing_was_written_outside_the_project(project: Project) -> None:
    assert {path.name for path in project.folder.iterdir()} == {"r.yaml", "chat.jsonl", "maths.jsonl", "data", ".dagster", "ui.log"}
    assert Path(project.folder / ".dagster" / "workspace.yaml").exists()
