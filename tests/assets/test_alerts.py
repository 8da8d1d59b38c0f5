"""Alerts: said once, said again when it happens again, kept when the webhook doesn't take them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dflash_assets.assets.alerts import STALLED_SECONDS, WEBHOOK, Alert, NotTaken, Seen, alerts_of, send
from dflash_assets.assets.build import build_definitions
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.workspace import store_of
from tests.support.project import recipe_data


def progress(done: int = 10, phase: str = "steady", began: str = "2026-01-01T00:00:00+00:00") -> dict[str, Any]:
    return {
        "phase": phase,
        "prompts_done": done,
        "prompts_total": 48,
        "started_at": began,
        "written_at": "2026-01-01T02:03:00+00:00",
        "in_flight": 4,
        "last_fault": "gpu0: timed_out: planted",
    }


def test_failed_shards_are_said_once_and_again_after_they_were_mended() -> None:
    found, seen = alerts_of("r", {"verdicts": ["shard-00002", "shard-00001"]}, None, Seen(), 0.0)
    assert [(alert.kind, alert.shards) for alert in found] == [("failed_shards", ("shard-00001", "shard-00002"))]
    assert found[0].text == "r: 2 shard(s) of verdicts failed: shard-00001, shard-00002"
    found, seen = alerts_of("r", {"verdicts": ["shard-00001", "shard-00003"]}, None, seen, 60.0)
    assert [alert.shards for alert in found] == [("shard-00003",)]
    found, seen = alerts_of("r", {"verdicts": ["shard-00002"]}, None, seen, 120.0)
    assert [alert.shards for alert in found] == [("shard-00002",)]
    assert alerts_of("r", {"verdicts": ["shard-00002"]}, None, seen, 180.0)[0] == []


def test_many_failed_shards_are_counted() -> None:
    shards = [f"shard-{number:05d}" for number in range(30)]
    [alert], _ = alerts_of("r", {"completions": shards}, None, Seen(), 0.0)
    assert alert.text.endswith("shard-00019 and 10 more")
    assert len(alert.shards) == 30


def test_a_fleet_that_stands_still_is_said_once() -> None:
    found, seen = alerts_of("r", {}, progress(), Seen(), 1000.0)
    assert found == []
    found, seen = alerts_of("r", {}, progress(), seen, 1000.0 + STALLED_SECONDS - 1)
    assert found == []
    found, seen = alerts_of("r", {}, progress(), seen, 1000.0 + STALLED_SECONDS)
    assert [alert.kind for alert in found] == ["stalled"]
    assert found[0].text == (
        "r: no answer for 10 min at 10 of 48 prompts, 4 in flight; progress.json was written last at 02:03 UTC; last fault: gpu0: timed_out: planted"
    )
    assert alerts_of("r", {}, progress(), seen, 9000.0)[0] == []
    _, moved = alerts_of("r", {}, progress(11), seen, 9000.0)
    assert [alert.kind for alert in alerts_of("r", {}, progress(11), moved, 9000.0 + STALLED_SECONDS)[0]] == ["stalled"]


@pytest.mark.parametrize("now", [progress(phase="done"), None, progress(began="2026-01-02T00:00:00+00:00")])
def test_no_run_or_another_run_is_no_stall(now: dict[str, Any] | None) -> None:
    _, seen = alerts_of("r", {}, progress(), Seen(), 0.0)
    assert alerts_of("r", {}, now, seen, 10 * STALLED_SECONDS)[0] == []


def test_a_cursor_keeps_what_was_seen() -> None:
    _, seen = alerts_of("r", {"verdicts": ["shard-00001"]}, progress(), Seen(), 5.0)
    assert Seen.of(seen.cursor()) == seen
    assert Seen.of(None) == Seen()


class Receiver(HTTPServer):
    """Keeps what is posted; answers with `status`."""

    status = 200

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("hooks.example/services/TOKEN", "it is no http"),
        ("file:///tmp/TOKEN", "it is no http"),
        ("http://127.0.0.1:TOKEN/hook", "InvalidURL"),
        ("http://[TOKEN/hook", "ValueError"),
        ("http://127.0.0.1:9/a b/TOKEN", "InvalidURL"),
        ("http://127.0.0.1:9/TOKEN", "Connection refused"),
        ("http://user:TOKEN@127.0.0.1:9/hook", "InvalidURL|refused|not known|resolution"),
        ("http://127.0.0.1:{port}/TOKEN", "HTTP 403"),
    ],
)
def test_an_address_that_does_not_work_is_not_quoted(receiver: Receiver, address: str, why: str) -> None:
    receiver.status = 403
    with pytest.raises(NotTaken, match=why) as raised:
        send(address.format(port=receiver.server_port), "small", Alert("stalled", "no answer"))
    assert "TOKEN" not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None, "nor in a traceback"


def test_the_sensor_posts_to_the_webhook_and_keeps_what_it_does_not_take(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.model_validate(recipe_data({"kind": "embedded"}, store=str(tmp_path / "store")))
    store = store_of(recipe)
    store.put_text("progress.json", json.dumps(progress()))
    definitions = build_definitions(recipe, tmp_path)
    sensor = definitions.get_sensor_def("small_alerts")
    since = Seen({}, progress()["started_at"], 10, 0.0)
    monkeypatch.setenv(WEBHOOK, f"http://127.0.0.1:{receiver.server_port}/hook")
    with dg.instance_for_test() as instance:

        def look(cursor: str) -> tuple[str, str | None]:
            with dg.build_sensor_context(
                instance=instance,
                cursor=cursor,
                definitions=definitions,
                sensor_name=sensor.name,
                resources={"store": (definitions.resources or {})["store"]},
            ) as context:
                said = sensor(context)
                assert isinstance(said, dg.SkipReason)
                return said.skip_message or "", context.cursor

        receiver.status = 500
        said, cursor = look(since.cursor())
        assert "didn't take the alert" in said
        assert cursor == since.cursor()
        receiver.status = 200
        said, cursor = look(since.cursor())
        assert said.startswith("small: no answer for")
        assert cursor is not None
        assert Seen.of(cursor).stalled
        assert look(cursor)[0] == "nothing new"
    assert [(post["kind"], post["recipe"], post["shards"]) for post in receiver.got] == [("stalled", "small", [])] * 2
