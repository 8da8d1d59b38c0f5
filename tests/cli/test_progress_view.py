"""The panel of a run: what a person reads from progress.json."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from rich.console import Console

from dflash_assets.cli.progress_view import duration, panel, said
from dflash_assets.generation.progress import Progress


def shot(**changes: Any) -> dict[str, Any]:
    progress = Progress(prompts_total=1000, shards_total=4, gpus={"http://a": 4})
    progress.phase = "generating"
    progress.answered("ok", "http://a", 500, 20, source="maths", seconds=4.0)
    found = progress.snapshot()
    servers = {"http://a": {"down": True, "in_flight": 3, "slots": 64, "answered": 1, "output_tokens": 500}}
    return {**found, "servers": servers, "seconds_left": 7260.0, "seconds_left_lower": 6600.0, "seconds_left_upper": 8000.0, **changes}


def drawn(found: dict[str, Any], width: int = 120, **kwargs: Any) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(panel(found, **kwargs))
    return console.export_text()


def test_it_says_how_far_how_fast_and_how_long() -> None:
    words = drawn(shot(faults={"busy": 3, "timed_out": 5}, message="http://a is down: refused"), width=240)
    for expected in (
        "ramp",
        "0.1%",
        "1 of 1,000 prompts",
        "2 h 01 min left",
        "1 h 50 min to 2 h 13 min",
        "down",
        "timed_out 5, busy 3",
        "refused",
    ):
        assert expected in " ".join(words.split())


def test_it_fits_a_narrow_terminal() -> None:
    assert max(len(line) for line in drawn(shot(), width=60).splitlines()) <= 60


def test_a_run_that_was_killed_is_not_shown_as_going_on() -> None:
    found = shot()
    written = datetime.fromisoformat(found["written_at"])
    assert "isn't going on" not in drawn(found, now=written + timedelta(seconds=5))
    assert "isn't going on" in " ".join(drawn(found, now=written + timedelta(minutes=5)).split())
    assert "isn't going on" not in drawn({**found, "phase": "done"}, now=written + timedelta(minutes=5))


def test_a_finished_run_has_no_time_left() -> None:
    assert "left" not in said(shot(phase="done"))


def test_durations_are_words() -> None:
    assert [duration(seconds) for seconds in (12.4, 200, 3900)] == ["12 s", "3 min 20 s", "1 h 05 min"]
