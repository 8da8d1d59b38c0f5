"""Message content -> text: strings, lists of parts, null.

Here: one rule for every format's content parts. Not here: tool calls that stand as blocks in Anthropic and Responses
bodies (those readers take them out first) and Hermes tags in text (`inline_calls`).
"""

from __future__ import annotations

import re
from typing import Any

from dflash_assets.sources.literals import dump
from dflash_assets.sources.records import RowFault

TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
REASONING_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})
MEDIA_TYPES = frozenset(
    {
        "image",
        "image_url",
        "input_image",
        "input_audio",
        "audio",
        "video",
        "video_url",
        "file",
        "input_file",
        "document",
        "document_url",
    }
)
_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_DATA_URI = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,", re.IGNORECASE)
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/]{257,}")
_BLANK = re.compile(r"[\s\u200b-\u200f\u2060\ufeff]*")


def text_of(content: Any, where: str, flags: set[str]) -> str | None:
    """Text of a message's content; None stays None.

    Text parts are joined without a separator (flag `text_parts_joined`), reasoning parts dropped
    (`reasoning_dropped`). Raises RowFault: multimodal, unsupported_part, type_mismatch.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowFault("type_mismatch", f"{where}: content is a {type(content).__name__}, not text")
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise RowFault("unsupported_part", f"{where}: a part without a type")
        if kind in MEDIA_TYPES:
            raise RowFault("multimodal", f"{where}: a part of type {kind!r}; the target model reads text only")
        if kind in REASONING_TYPES:
            flags.add("reasoning_dropped")
            continue
        text = part.get("text", part.get("value", part.get("refusal"))) if isinstance(part, dict) else None
        if (kind not in TEXT_TYPES and kind != "refusal") or not isinstance(text, str):
            raise RowFault("unsupported_part", f"{where}: a part of type {str(kind)[:40]!r} without text")
        texts.append(text)
    flags.add("text_parts_joined")
    return "".join(texts)


def tool_text_of(content: Any, where: str, flags: set[str]) -> str | None:
    """Text of a tool result: as `text_of`, but any other JSON value becomes JSON text (flag `tool_content_serialised`)."""
    if (
        isinstance(content, list)
        and content
        and not all(isinstance(part, str) or (isinstance(part, dict) and "type" in part) for part in content)
    ):
        flags.add("tool_content_serialised")
        return dump(content)
    if isinstance(content, dict | bool | int | float):
        flags.add("tool_content_serialised")
        return dump(content)
    return text_of(content, where, flags)


def without_thought(text: str, flags: set[str]) -> str:
    """Text of an earlier answer without its leading `<think>...</think>` (flag `reasoning_dropped`)."""
    match = _THOUGHT.match(text)
    if match is None:
        return text
    flags.add("reasoning_dropped")
    return text[match.end() :]


def is_blank(text: str) -> bool:
    """True for white space and zero-width characters only."""
    return _BLANK.fullmatch(text) is not None


def holds_base64(text: str) -> bool:
    """True for a base64 data URI of any length, or a run of more than 256 base64 characters of mixed kind.

    Mixed: upper case, lower case and digits, so that a long run of one letter or a long word is no base64.
    """
    if "base64," in text and _DATA_URI.search(text):
        return True
    if len(text) <= 256:
        return False
    return any(re.search("[A-Z]", run) and re.search("[a-z]", run) and re.search("[0-9]", run) for run in _BASE64_RUN.findall(text))
