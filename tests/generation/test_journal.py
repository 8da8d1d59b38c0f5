"""The journal: what it said is done survives anything; what was torn is cut; nothing is invented."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.errors import GenerationError
from dflash_assets.generation.journal import MAGIC, Journal
from dflash_assets.generation.record import Answer
from tests.support.generation import an_answer


def fill(folder: Path, count: int, **kwargs: int) -> list[Answer]:
    journal = Journal(folder, **kwargs)
    answers = [an_answer(f"key-{number:04d}", f"answer {number}", tuple(range(number))) for number in range(count)]
    for future in [journal.append(answer) for answer in answers]:
        future.result(timeout=10)
    journal.close()
    return answers


@given(
    text=st.text(st.characters(codec=None), max_size=200),
    ids=st.lists(st.integers(0, 2**31 - 1), max_size=50),
    detail=st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
)
def test_an_answer_comes_back_as_it_was(text: str, ids: list[int], detail: str | None) -> None:
    from dataclasses import replace

    answer = replace(an_answer("k", text, tuple(ids)), detail=detail)
    assert Answer.decode(answer.encode()) == answer


def test_answers_are_there_after_reopening(tmp_path: Path) -> None:
    answers = fill(tmp_path, 100)
    journal = Journal(tmp_path)
    assert len(journal) == 100
    assert [journal.get(answer.key) for answer in answers] == answers
    assert journal.get("unknown") is None
    assert journal.damage == []
    journal.close()


def test_the_newest_answer_of_a_key_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(an_answer("k", "old")).result(timeout=10)
    journal.append(an_answer("k", "new")).result(timeout=10)
    journal.close()
    again = Journal(tmp_path)
    found = again.get("k")
    assert found is not None
    assert found.text == "new"
    assert len(again) == 1
    again.close()


def test_a_waiter_that_gives_up_does_not_harm_the_writer(tmp_path: Path) -> None:
    import asyncio

    journal = Journal(tmp_path, group_seconds=0.2)

    async def give_up() -> None:
        waiting = asyncio.ensure_future(asyncio.wrap_future(journal.append(an_answer("k1"))))
        await asyncio.sleep(0.01)
        waiting.cancel()

    asyncio.run(give_up())
    journal.append(an_answer("k2")).result(timeout=10)
    assert journal.get("k1") is not None
    journal.close()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(GenerationError, match="another run"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000), seed=st.integers(0, 2**32))
def test_a_torn_tail_is_cut_and_everything_before_it_kept(tmp_path_factory: pytest.TempPathFactory, cut: int, seed: int) -> None:
    folder = tmp_path_factory.mktemp("journal")
    answers = fill(folder, 20)
    (segment,) = folder.glob("*.log")
    data = segment.read_bytes()
    keep = cut % (len(data) + 1)
    segment.write_bytes(data[:keep] + random.Random(seed).randbytes(seed % 5 if keep < len(data) else 0))
    journal = Journal(folder)
    found = [answer for answer in answers if journal.get(answer.key) is not None]
    assert found == answers[: len(found)], "a prefix survives, nothing in the middle is lost"
    assert all(journal.get(answer.key) == answer for answer in found)
    late = an_answer("late", "written after the repair")
    journal.append(late).result(timeout=10)
    journal.close()
    again = Journal(folder)
    assert again.get("late") == late, "an append after a torn tail isn't glued to it"
    assert all(again.get(answer.key) == answer for answer in found)
    again.close()


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_flipped_byte_never_becomes_an_answer(tmp_path_factory: pytest.TempPathFactory, position: int, flip: int) -> None:
    folder = tmp_path_factory.mktemp("journal")
    answers = {answer.key: answer for answer in fill(folder, 20)}
    (segment,) = folder.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[position % len(data)] ^= flip
    segment.write_bytes(bytes(data))
    journal = Journal(folder)
    for key, answer in answers.items():
        assert journal.get(key) in (None, answer)
    assert journal.damage, "damage is reported"
    journal.close()


def test_damage_in_the_middle_costs_that_segment_only_and_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, 200, segment_bytes=2000, group_records=4)
    segments = sorted(tmp_path.glob("*.log"))
    assert len(segments) > 3
    data = bytearray(segments[1].read_bytes())
    data[len(MAGIC) + 20] ^= 1
    segments[1].write_bytes(bytes(data))
    journal = Journal(tmp_path)
    assert [(damage.segment, damage.torn_tail) for damage in journal.damage] == [(segments[1].name, False)]
    assert 0 < 200 - len(journal) < 200 / 2
    journal.close()


def test_retired_segments_are_deleted(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=2000, group_records=4)
    keys = [f"key-{number:04d}" for number in range(200)]
    for future in [journal.append(an_answer(key)) for key in keys]:
        future.result(timeout=10)
    before = len(list(tmp_path.glob("*.log")))
    journal.retire(keys[:150])
    assert len(list(tmp_path.glob("*.log"))) < before / 2
    assert journal.get(keys[149]) is None
    assert journal.get(keys[150]) is not None
    journal.close()
    again = Journal(tmp_path)
    assert all(again.get(key) is not None for key in keys[150:])
    again.close()


WRITER = textwrap.dedent("""
    import sys
    from concurrent.futures import wait
    from pathlib import Path
    from dflash_assets.generation.journal import Journal
    from dflash_assets.generation.record import Answer
    journal = Journal(Path(sys.argv[1]), group_seconds=0.002, segment_bytes=20000)
    start = int(sys.argv[2])
    for number in range(start, start + 100000):
        answer = Answer(key=f"k{number}", outcome="ok", text="x" * (number % 700), output_ids=tuple(range(number % 50)),
            finish_reason="stop",
            matched_stop=None, detail=None, attempts=1, ids_exact=True,
            engine="e", engine_version="1", model_revision="r", server="s", started_at=1, seconds=0.1)
        journal.append(answer).result()
        print(number, flush=True)
""")


def test_sigkill_loses_no_acknowledged_answer(tmp_path: Path) -> None:
    """Ten kills at random moments: whatever was said to be done is there, each key once."""
    random_source = random.Random(20)
    acknowledged: set[int] = set()
    for turn in range(10):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(turn * 1000)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(random_source.randint(1, 60))]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        acknowledged |= {int(line) for line in lines if line.strip().isdigit() and line.endswith("\n")}
    journal = Journal(tmp_path)
    missing = [number for number in acknowledged if f"k{number}" not in journal]
    assert missing == []
    assert len(acknowledged) >= 10
    assert all(journal.get(f"k{number}").text == "x" * (number % 700) for number in acknowledged)  # type: ignore[union-attr]
    journal.close()
