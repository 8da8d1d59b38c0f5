"""Recorded faults of servers (family 6), as far as one engine's answer to one request decides them.

The simulator plays each script to the chat engine as it stands and to `/generate` in that route's own shape; both must say the same.
Retries, waiting and stopping a run belong to the window: those parts of a row are checked with the generation handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dflash_assets.resources.engines.base import Engine, EngineError, GenerationReply
from dflash_assets.resources.engines.openai_chat import OpenAIChatEngine
from dflash_assets.resources.engines.sglang import SglangEngine
from tests.support.cases import NotHandled
from tests.support.engine_contract import request
from tests.support.simulated import simulated, small_tokenizer

MODEL = "test-model"


@dataclass
class _Played:
    """What an engine got for the requests of a script, asked one after the other."""

    results: list[GenerationReply | EngineError] = field(default_factory=list)
    model: str = ""
    paths: list[str] = field(default_factory=list)
    """Paths of the generation requests."""

    @property
    def errors(self) -> list[EngineError]:
        return [result for result in self.results if isinstance(result, EngineError)]

    @property
    def replies(self) -> list[GenerationReply]:
        return [result for result in self.results if isinstance(result, GenerationReply)]


def handle(row: dict[str, Any]) -> None:
    """Check one row; raises NotHandled for rows of other handlers, AssertionError where the product is wrong."""
    check = _CHECKS.get(row["id"])
    if row["input_format"] != "http_behaviour" or check is None:
        raise NotHandled(row["id"])
    for make in (_chat, _sglang):
        check(row, make)


def _chat(url: str) -> Engine:
    return OpenAIChatEngine(url, model=MODEL, codec=small_tokenizer())


def _sglang(url: str) -> Engine:
    return SglangEngine(url)


def play(row: dict[str, Any], make: Callable[[str], Engine], *, requests: int | None = None, form: str = "{}") -> _Played:
    """Ask as many times as the script has steps (or `requests`), each time with a new request id."""
    script = row["input"]["script"]
    deadline = float((row["input"].get("config") or {}).get("request_timeout_s", 30))
    played = _Played()

    async def run(url: str) -> None:
        engine = make(form.format(url))
        info = await engine.start()
        played.model = info.model
        for number in range(len(script) if requests is None else requests):
            asked = request(small_tokenizer(), f"question {number}", max_tokens=3000, deadline=deadline)
            try:
                played.results.append(await engine.generate(asked))
            except EngineError as error:
                played.results.append(error)
        await engine.close()

    with simulated(script=script) as (url, server):
        asyncio.run(run(url))
        played.paths = [path for path, _ in server.requests if path in ("/generate", "/v1/chat/completions")]
    return played


def _context(row: dict[str, Any], make: Callable[[str], Engine]) -> None:
    played = play(row, make, requests=1)
    assert [error.kind for error in played.errors] == ["context_length"]
    said = row["input"]["script"][0]["json"]["message"]
    assert said in str(played.errors[0])
    assert len(played.paths) == 1


def _then_ok(
    kind: str, *, snippet: str | None = None, retry_after: float | None = None
) -> Callable[[dict[str, Any], Callable[[str], Engine]], None]:
    """All steps but the last fail as `kind`, none of them ends the engine, and the last one answers."""

    def check(row: dict[str, Any], make: Callable[[str], Engine]) -> None:
        played = play(row, make)
        assert [error.kind for error in played.errors] == [kind] * (len(row["input"]["script"]) - 1)
        assert row["expected"].get("first_failure_kind", kind) == kind
        if snippet is not None:
            assert snippet in (played.errors[0].snippet or "")
            assert snippet in str(played.errors[0])
        assert played.errors[0].retry_after == retry_after
        _is_answer(played.replies)

    return check


def _is_answer(replies: list[GenerationReply]) -> None:
    [reply] = replies
    assert reply.finish_reason == "stop"
    assert "4" in reply.text
    assert reply.output_ids[-1] == small_tokenizer().end_of_turn_id
    assert reply.completion_tokens >= 1


def _wrong_model(row: dict[str, Any], make: Callable[[str], Engine]) -> None:
    """The engine names what is listed, not what a reply echoes; comparing it with the recipe is the run's."""
    played = play(row, make, requests=0)
    assert played.model == "served-model"
    assert not played.paths


def _unwell(row: dict[str, Any], make: Callable[[str], Engine]) -> None:
    _is_answer(play(row, make, requests=1).replies)


def _hanging(row: dict[str, Any], make: Callable[[str], Engine]) -> None:
    shortened = {**row, "input": {**row["input"], "config": {**row["input"]["config"], "request_timeout_s": 0.3}}}
    assert [error.kind for error in play(shortened, make, requests=1).errors] == ["timed_out"]


def _no_usage(row: dict[str, Any], make: Callable[[str], Engine]) -> None:
    [reply] = play(row, make).replies
    assert reply.completion_tokens == len(reply.output_ids) >= row["expected"]["output_tokens_min"]
    assert reply.prompt_tokens == len(request(small_tokenizer(), "question 0").prompt_ids)


def _base_urls(row: dict[str, Any], make: Callable[[str], Engine]) -> None:
    for variant in row["input"]["config_variants"]:
        played = play(row, make, requests=1, form=variant.replace("http://127.0.0.1:PORT", "{}"))
        _is_answer(played.replies)
        assert played.paths == (row["expected"]["requested_paths"] if make is _chat else ["/generate"])


def _backwards(row: dict[str, Any], make: Callable[[str], Engine]) -> None:
    [step], count = row["input"]["script"], row["input"]["rows"]
    assert step["delay_s"] == "(8-i)*0.2"
    # A tenth of the recorded delays: the order is the point.
    script = [{"delay_s": (count - place) * 0.02, "json_content": step["json_content"]} for place in range(count)]

    async def run(url: str) -> list[GenerationReply]:
        engine = make(url)
        await engine.start()
        asked = (engine.generate(request(small_tokenizer(), f"question {number}")) for number in range(count))
        replies = await asyncio.gather(*asked)
        await engine.close()
        return list(replies)

    with simulated(script=script) as (url, _server):
        replies = asyncio.run(run(url))
    assert [reply.text.removesuffix("<|im_end|>") for reply in replies] == [f"answer to question {number}" for number in range(count)]


_CHECKS: dict[str, Callable[[dict[str, Any], Callable[[str], Engine]], None]] = {
    "S601": _context,
    "S602": _context,
    "S603": _then_ok("busy", retry_after=2.0),
    "S606": _then_ok("disconnected"),
    "S607": _hanging,
    "S611": _wrong_model,
    "S613": _then_ok("bad_body", snippet="502 Bad Gateway"),
    "S614": _then_ok("bad_body"),
    "S615": _then_ok("bad_body"),
    "S617": _unwell,
    "S618": _hanging,
    "S619": _backwards,
    "S622": _no_usage,
    "S626": _base_urls,
}
KNOWN = frozenset(_CHECKS)
"""Ids of the rows that are checked here."""
