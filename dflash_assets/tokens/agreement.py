"""Do a server's chat template and tokenizer make the ids that ours make? Asked before the first request.

Here: the comparison, and texts that tell tokenizers apart. Not here: which prompts of a blend are compared
(`dflash_assets.assets.server_check`) and the routes (`resources.engines.sglang`).

We send ids, so a server with another template still answers what we rendered. But a wrong tokenizer on either side means another
vocabulary than the model's, or another model than the recipe's, and a wrong template that the prompts aren't what the model is
served with elsewhere: neither must be found out after 20 hours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dflash_assets.tokens.tokenizer import Conversation, TargetTokenizer

PROBES = (
    "The quick brown fox jumps over the lazy dog's back. It's 12345678 o'clock!",
    "def f(x: int) -> int:\n\treturn x ** 2  # comment\n\n\n    if x == 0x1F:\r\n        pass",
    "日本語の文章です。한국어 문장. Русский текст, ελληνικά, العربية, हिन्दी",
    "é e\u0301 ﬁ ½ 🙂👩‍👩‍👧 \u200b\u00a0end   three spaces\t\ttabs\n\n\nnewlines",
    '$\\int_0^1 x^2\\,dx = \\frac{1}{3}$ {"a": [1, 2.50, null], "b": "\\u00fc"} <tag attr=\'v\'/>',
)
"""Texts on which tokenizers of different models differ: digits, contractions, white space, scripts, combining marks, code."""

# SGLang 0.5.23 puts `"defer_loading": null` into every tool (docs/engines.md); a null field says the same as none.
_NULL_FIELD = re.compile(r',\s*"[A-Za-z_]+":\s*null')


class ServerTokens(Protocol):
    """A server that shows how it tokenises and renders."""

    async def tokenize(self, text: str) -> list[int]:
        """Ids of a text, nothing added."""
        ...

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        """Prompt ids of a conversation, generation prompt included."""
        ...


async def tokenizer_difference(server: ServerTokens, tokenizer: TargetTokenizer) -> str | None:
    """How the server's tokenizer differs from ours on the probes; None when it doesn't. Raises what the server's methods raise."""
    for text in PROBES:
        theirs, ours = await server.tokenize(text), tokenizer.encode(text)
        if theirs != ours:
            return f"its tokenizer isn't the recipe's: {text[:40]!r} is {_parting(ours, theirs)}"
    return None


async def render_difference(
    server: ServerTokens, tokenizer: TargetTokenizer, conversation: Conversation, template_kwargs: Mapping[str, Any]
) -> str | None:
    """How the server's rendering of a conversation differs from ours; None when it doesn't.

    With tools the texts are compared instead of the ids, null fields of the tools left out.
    """
    ours = tokenizer.encode_prompt(conversation.messages, conversation.tools, conversation.thinking)
    theirs = await server.render(conversation.messages, conversation.tools, {**template_kwargs, "enable_thinking": conversation.thinking})
    if ours == theirs:
        return None
    our_text, their_text = tokenizer.decode(ours), tokenizer.decode(theirs)
    if conversation.tools and _NULL_FIELD.sub("", our_text) == _NULL_FIELD.sub("", their_text):
        return None
    if our_text == their_text:
        return f"it renders the same text as other ids: {_parting(ours, theirs)}"
    at = next(
        (place for place, (a, b) in enumerate(zip(our_text, their_text, strict=False)) if a != b), min(len(our_text), len(their_text))
    )
    start = max(0, at - 30)
    return f"its chat template isn't the recipe's: after {at} characters {our_text[start : at + 40]!r} here, {their_text[start : at + 40]!r} there"


def _parting(ours: Sequence[int], theirs: Sequence[int]) -> str:
    at = next((place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"{len(ours)} ids here and {len(theirs)} there, equal up to number {at}: {list(ours[at : at + 5])} here, {list(theirs[at : at + 5])} there"
