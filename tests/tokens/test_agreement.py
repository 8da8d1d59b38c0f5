"""A server's tokenizer and template against ours, with servers that differ in one thing each."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.tokens.agreement import render_difference, tokenizer_difference
from dflash_assets.tokens.tokenizer import Conversation, TargetTokenizer
from tests.support.simulated import simulated, small_tokenizer

PLAIN = Conversation([{"role": "user", "content": "How long is the Rhine?"}], None, False)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "find", "description": "x", "parameters": {"type": "object", "properties": {}}},
}
CALL: dict[str, Any] = {"type": "function", "function": {"name": "find", "arguments": {"q": "Ü", "n": 1}}}
HISTORY = Conversation(
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "{}"},
    ],
    None,
    True,
)


def _same(value: Any) -> Any:
    return value


@dataclasses.dataclass
class Server:
    """Answers with our own tokenizer, changed by the hooks."""

    tokenizer: TargetTokenizer
    encode: Callable[[list[int]], list[int]] = _same
    text: Callable[[str], str] = _same

    async def tokenize(self, text: str) -> list[int]:
        return self.encode(self.tokenizer.encode(text))

    async def render(self, messages: Sequence[Mapping[str, Any]], tools: Any, template_kwargs: Mapping[str, Any]) -> list[int]:
        rendered = self.tokenizer.render(messages, tools, bool(template_kwargs["enable_thinking"]))
        return self.encode(self.tokenizer.encode(self.text(rendered)))


def render(server: Server, conversation: Conversation) -> str | None:
    return asyncio.run(render_difference(server, small_tokenizer(), conversation, {}))


def test_equal() -> None:
    server = Server(small_tokenizer())
    assert asyncio.run(tokenizer_difference(server, small_tokenizer())) is None
    assert render(server, PLAIN) is None


def test_another_tokenizer() -> None:
    said = asyncio.run(tokenizer_difference(Server(small_tokenizer(), encode=lambda ids: [*ids[:3], 7, *ids[4:]]), small_tokenizer()))
    assert said is not None
    assert "its tokenizer isn't the recipe's: 'The quick brown fox" in said
    assert "equal up to number 3" in said


def test_another_template() -> None:
    said = render(Server(small_tokenizer(), text=lambda text: text.replace("How", "Please. How")), PLAIN)
    assert said is not None
    assert "its chat template isn't the recipe's: after " in said
    assert "Please. How" in said


def test_the_same_text_as_other_ids() -> None:
    tokenizer = small_tokenizer()
    apart = [index for character in "How long" for index in tokenizer.encode(character)]
    merged = tokenizer.encode("How long")

    def split(ids: list[int]) -> list[int]:
        at = next(place for place in range(len(ids)) if ids[place : place + len(merged)] == merged)
        return [*ids[:at], *apart, *ids[at + len(merged) :]]

    said = render(Server(tokenizer, encode=split), PLAIN)
    assert said is not None
    assert "the same text as other ids" in said


@pytest.mark.parametrize(("added", "equal"), [(', "defer_loading": null', True), (', "strict": true', False)])
def test_null_fields_of_tools_say_nothing(added: str, equal: bool) -> None:
    """SGLang adds one to every tool. SmolLM2's template prints no tools, so they stand in a message here."""
    shown = Conversation([{"role": "user", "content": '{"name": "find"}'}], [TOOL], False)
    said = render(Server(small_tokenizer(), text=lambda text: text.replace('"find"', f'"find"{added}')), shown)
    assert (said is None) == equal


@pytest.mark.parametrize("conversation", [PLAIN, HISTORY])
def test_over_http(conversation: Conversation) -> None:
    async def run(url: str) -> tuple[str | None, str | None]:
        server = SglangEngine(url)
        await server.start()
        try:
            return (
                await tokenizer_difference(server, small_tokenizer()),
                await render_difference(server, small_tokenizer(), conversation, {"preserve_thinking": True}),
            )
        finally:
            await server.close()

    with simulated() as (url, _):
        assert asyncio.run(run(url)) == (None, None)
