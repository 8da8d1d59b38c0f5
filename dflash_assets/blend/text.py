"""Texts of a prompt for comparing it with others.

Here: the normal form of exact duplicates and the texts that near-duplicates and contamination look at. Not here: the
comparisons. What counts as equal: NFKC, case folding and white space are ignored; roles, calls, tools and the *system
text* count, since another system prompt or schema asks for another answer. Near-duplicates and contamination look at
user texts only: agents share system prompts of thousands of words.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import orjson
import xxhash


def folded(text: str) -> str:
    """NFKC, case-folded, runs of white space as one blank."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def duplicate_key(messages: list[dict[str, Any]], tools_json: str | None) -> bytes:
    """16-byte xxh3_128 of a prompt's normal form; ids of tool calls don't count."""
    hasher = xxhash.xxh3_128()
    for message in messages:
        hasher.update(b"\x00" + message["role"].encode() + b"\x01" + folded(message["content"]).encode("utf-8", "replace"))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            hasher.update(
                b"\x02" + function["name"].encode("utf-8", "replace") + b"\x03" + folded(function["arguments"]).encode("utf-8", "replace")
            )
    hasher.update(b"\x04" + (tools_json or "").encode("utf-8", "replace"))
    return hasher.digest()


def user_texts(messages: list[dict[str, Any]]) -> list[str]:
    """Texts of the user messages, in order."""
    return [message["content"] for message in messages if message["role"] == "user"]


def compared_text(messages: list[dict[str, Any]]) -> str:
    """What near-duplicates are told by: the folded user messages, a line each."""
    return folded("\n".join(user_texts(messages)))


def parsed(messages_json: str) -> list[dict[str, Any]]:
    """Canonical messages of a row."""
    return orjson.loads(messages_json)
