"""Which request goes next: shard order, longest first at the end, prefixes and samples at home, never an idle slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.generation.order import LOOK_AHEAD, PREFIX_TOKENS, RESORT_ANSWERS, ExpectedLengths, Job, ReadyQueue
from dflash_assets.generation.requests import Ask


def job(number: int, *, source: str = "code", prefix: int | None = None, sample: int = 0) -> Job:
    ids = (number, 7, 9) if prefix is None else (*([prefix] * PREFIX_TOKENS), number)
    return Job(Ask(f"k{number}-{sample}", f"p{number}", source, 0, sample, 0, None, ids, "[]", None, False), [])


def queue(*jobs: Job, lengths: ExpectedLengths | None = None) -> ReadyQueue:
    made = ReadyQueue(lengths or ExpectedLengths())
    for one in jobs:
        made.append(one)
    return made


UP = {"a", "b"}


def test_order_of_the_shards_while_more_follow() -> None:
    lengths = ExpectedLengths()
    lengths.observe("maths", 900)
    lengths.observe("code", 10)
    jobs = [job(0), job(1, source="maths"), job(2)]
    ready = queue(*jobs, lengths=lengths)
    assert [ready.take("a", UP) for _ in jobs] == jobs


def test_the_longest_source_first_when_no_shard_follows() -> None:
    lengths = ExpectedLengths()
    for source, tokens in (("maths", 900), ("code", 10), ("chat", 100), ("maths", 1100)):
        lengths.observe(source, tokens)
    jobs = [job(number, source=source) for number, source in enumerate(("code", "chat", "maths", "code", "new", "maths"))]
    ready = queue(*jobs, lengths=lengths)
    ready.longest_first()
    taken = [ready.take("a", UP) for _ in jobs]
    assert [one.ask.source for one in taken] == ["maths", "new", "maths", "chat", "code", "code"], (
        "unknown counts as longest; else in order"
    )
    assert lengths.of("maths") == 1000


def test_the_order_follows_what_is_learnt_in_the_tail() -> None:
    lengths = ExpectedLengths()
    ready = queue(*(job(number, source="code" if number < 5 else "maths") for number in range(10)), lengths=lengths)
    ready.longest_first()
    assert ready.take("a", UP).ask.source == "code", "nothing known yet"
    for _ in range(RESORT_ANSWERS):
        lengths.observe("maths", 500)
        lengths.observe("code", 5)
    assert ready.take("a", UP).ask.source == "maths"


def test_an_order_of_equals_is_given_up_when_they_differ() -> None:
    """By name "code" comes first already, but the jobs stand as they came."""
    lengths = ExpectedLengths()
    ready = queue(*(job(number, source="maths" if number % 2 else "code") for number in range(12)), lengths=lengths)
    ready.longest_first()
    assert [ready.take("a", UP).ask.source for _ in range(4)] == ["code", "maths"] * 2
    for _ in range(RESORT_ANSWERS):
        lengths.observe("code", 500)
        lengths.observe("maths", 5)
    assert [ready.take("a", UP).ask.source for _ in range(8)] == ["code"] * 4 + ["maths"] * 4


def test_a_retry_of_a_source_that_had_left_the_queue_is_sorted_too() -> None:
    lengths = ExpectedLengths()
    ready = queue(*(job(number, source="maths") for number in range(3)), lengths=lengths)
    ready.longest_first()
    ready.again(job(9, source="code"))
    for _ in range(RESORT_ANSWERS):
        lengths.observe("maths", 500)
        lengths.observe("code", 5)
    assert [ready.take("a", UP).ask.source for _ in range(4)] == ["maths"] * 3 + ["code"]


def test_samples_of_a_prompt_go_to_one_server() -> None:
    jobs = [job(number, sample=sample) for number in range(8) for sample in range(4)]
    ready = queue(*jobs)
    went: dict[str, set[str]] = {}
    for turn in range(len(jobs)):
        server = "ab"[turn % 2]
        went.setdefault(ready.take(server, UP).ask.prompt_id, set()).add(server)
    assert all(len(servers) == 1 for servers in went.values())


def test_prompts_with_one_prefix_go_to_one_server_when_there_is_a_choice() -> None:
    jobs = [job(number, prefix=number % 2) for number in range(12)]
    ready = queue(*jobs)
    went = [("ab"[turn % 2], ready.take("ab"[turn % 2], UP).prefix) for turn in range(10)]
    assert len(set(went)) == 2


def test_a_slot_never_waits_for_a_prefix() -> None:
    jobs = [job(number, prefix=1) for number in range(LOOK_AHEAD + 5)]
    ready = queue(*jobs)
    assert ready.take("a", UP) is jobs[0]
    assert ready.take("b", UP) is jobs[1], "all the others belong to a, but b is free"


def test_a_home_that_is_down_is_no_home() -> None:
    first, second, other = job(0, prefix=1), job(1, prefix=1), job(2)
    ready = queue(first, second, other)
    assert ready.take("a", UP) is first
    assert ready.take("b", {"b"}) is second


def test_a_failed_request_goes_elsewhere_while_there_is_an_elsewhere() -> None:
    failed, other = job(0), job(1)
    failed.avoid.add("a")
    ready = queue(other)
    ready.again(failed)
    assert ready.take("a", UP) is other
    assert ready.take("a", UP) is failed, "better there than nowhere"


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["code", "maths", "chat"])), max_size=60), st.data())
def test_every_job_comes_out_once(spec: list[tuple[int, str]], data: st.DataObject) -> None:
    jobs = [job(number, prefix=prefix, source=source) for number, (prefix, source) in enumerate(spec)]
    ready = queue(*jobs)
    if data.draw(st.booleans()):
        ready.longest_first()
    taken = [ready.take(data.draw(st.sampled_from(["a", "b"])), UP) for _ in jobs]
    assert sorted(one.ask.key for one in taken) == sorted(one.ask.key for one in jobs)
    assert len(ready) == 0
