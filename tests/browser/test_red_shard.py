"""What a person does about a shard that is red for its content: its check says how, and clicks alone turn it green."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.browser import screenshot
from tests.support.project import ROOT, Project
from tests.support.red_shard import BAD, RED, SHARDS, red_shard_project
from tests.support.webserver import Webserver

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

BOTH = quote('key:"small/completions" or key:"small/verdicts"', safe="")
WAIT_MS = 120_000


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with red_shard_project(tmp_path_factory.mktemp("red_shard")) as made:
        yield made


@pytest.fixture(autouse=True)
def _patience(page: Page) -> None:
    page.set_default_timeout(WAIT_MS)


def documented_config() -> str:
    """The configuration docs/webserver.md tells to paste, for this recipe."""
    [block] = re.findall(r"```yaml\n(ops:.*?)```", (ROOT / "docs" / "webserver.md").read_text(), re.DOTALL)
    return block.replace("RECIPE__", "small__").strip()


def test_the_check_of_a_red_shard_says_what_to_do(page: Page, server: Webserver) -> None:
    assert (server.shards("small", "verdicts")["failed"], server.shards("small", "completions")["failed"]) == ([RED], [])
    page.goto(f"{server.url}/assets/small/verdicts?view=checks&checkDetail=hard_rules")
    page.get_by_text("Execution history").click()
    row = page.locator("tr", has_text=RED).first
    row.wait_for()
    assert "Failed" in row.inner_text()
    row.get_by_role("button").last.click()
    page.get_by_text("output_tokens_range").first.wait_for()
    page.get_by_text(re.compile("redrive .*--failed|resample_failed|Show Markdown|\\[Show", re.IGNORECASE)).first.wait_for()
    screenshot(page, "red-shard-check")


def test_a_backfill_of_both_with_resample_failed_turns_it_green(page: Page, server: Webserver, project: Project) -> None:
    page.goto(f"{server.url}/asset-groups~{BOTH}/")
    page.get_by_role("button", name="Materialize all…").click()
    dialog = page.get_by_role("dialog")
    # The dialogue forgets a choice made before it has asked for the shards' states.
    chosen = dialog.locator("*", has_text=re.compile(f"^{RED}$")).first
    for _ in range(20):
        dialog.get_by_role("button", name="Failed", exact=True).click()
        page.wait_for_timeout(3000)
        if chosen.is_visible():
            break
    assert dialog.get_by_text("1 partition", exact=True).is_visible(), "the red shard and no other"
    dialog.get_by_text("Config", exact=True).click()
    dialog.get_by_role("button", name="Add config").click()
    editor = page.locator(".CodeMirror.cm-s-config-editor")
    editor.click()
    page.keyboard.insert_text(documented_config())
    page.get_by_text("No errors").wait_for()
    screenshot(page, "resample-config")
    assert editor.locator(".CodeMirror-line").all_inner_texts() == documented_config().splitlines()
    page.get_by_role("button", name="Save config").click()
    launch = dialog.get_by_role("button", name=re.compile("^Launch"))
    launch.wait_for()
    assert chosen.is_visible(), "still chosen"
    screenshot(page, "resample-launch")
    launch.click()
    launch.wait_for(state="hidden")
    server.wait_for(
        "a green shard", lambda: server.shards("small", "verdicts"), lambda s: s["materialized"] == SHARDS and not s["failed"], 600
    )
    assert project.progress()["requests_sent"] == BAD, "the rows that failed, and no good one"


def test_the_page_shows_it_green(page: Page, server: Webserver) -> None:
    page.goto(f"{server.url}/assets/small/verdicts?view=partitions")
    page.get_by_text("Materialized (3)").wait_for()
    page.get_by_text("Failed (0)").wait_for()
    dot = page.locator(f'[data-tooltip="{RED}"] + div')
    dot.wait_for()
    red, green, blue = map(int, re.findall(r"\d+", dot.evaluate("dot => getComputedStyle(dot).backgroundColor"))[:3])
    assert green > 1.2 * max(red, blue), "green to the eye"
    screenshot(page, "red-shard-green")
