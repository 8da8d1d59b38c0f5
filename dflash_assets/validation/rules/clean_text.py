"""Rule `clean_text`: nothing in the text that no reader should ever see.

Here: special tokens written as text, replacement characters, raw byte pieces of a tokenizer, control characters. Not
here: think markers (`presence.py`), call markup (`tool_calls.py`) and loops (`repetition.py`).
"""

from __future__ import annotations

import re

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.rules.base import PASSED, RuleResult, failed, rule

# Special tokens of the Qwen, ChatML, Llama 3 and FIM vocabularies.
_SPECIAL = re.compile(
    r"<\|(?:im_start|im_end|im_sep|endoftext|end_of_text|begin_of_text|eot_id|eom_id|start_header_id|end_header_id|python_tag"
    r"|object_ref_start|object_ref_end|box_start|box_end|quad_start|quad_end|vision_start|vision_end|vision_pad|image_pad|video_pad"
    r"|audio_start|audio_end|audio_pad|fim_prefix|fim_middle|fim_suffix|fim_pad|repo_name|file_sep|channel|message|return|call)\|>"
)
_BYTE = re.compile(r"<0x(?:0[Aa]|[89A-Fa-f][0-9A-Fa-f])>")
# `Ġ`, `Ċ` and `▁` are letters and a drawing character of their own; inside a Latin word they are the tokenizer's.
_PIECE = re.compile(r"[a-z.,;:]Ġ[A-Za-z]|[a-z.,;:]Ċ|[A-Za-z]▁[A-Za-z]")
_CONTROL = bytes(code for code in range(32) if chr(code) not in "\t\n\r\f\x1b") + b"\x7f"
_SURROGATE = re.compile("[\ud800-\udfff]")


class CleanTextParameters(RecipeModel):
    """Parameters of `clean_text`."""

    markers: tuple[str, ...] = ()
    """Further texts that must not occur, e.g. special tokens of another vocabulary."""


@rule(parameters=CleanTextParameters)
def clean_text(event: Event, context: ValidationContext, parameters: CleanTextParameters) -> RuleResult:
    """No special token as text, no U+FFFD, no raw tokenizer bytes, no control characters, in reasoning and content."""
    parts = [(name, part) for name, part in (("reasoning", event.answer.reasoning), ("content", event.answer.content)) if part]
    for number, (name, part) in enumerate(parts, start=1):
        # An answer cut at the limit may end within a character, which decoders show as U+FFFD: that is no dirt.
        cut = event.finish_class == "length" and number == len(parts)
        found = dirt(part.rstrip("\ufffd") if cut else part, parameters.markers)
        if found is not None:
            return failed(found[0], f"{found[1]} in the {name}")
    return PASSED


def dirt(text: str, markers: tuple[str, ...] = ()) -> tuple[str, str] | None:
    """Reason and detail of the first kind of dirt in a text; None when clean. Every test begins with a plain search."""
    if "<|" in text:
        leaked = list(dict.fromkeys(_SPECIAL.findall(text)))
        if leaked:
            return "special_token", ", ".join(leaked[:8])
    for marker in markers:
        if marker in text:
            return "special_token", marker
    if "<0x" in text and (found := _BYTE.findall(text)):
        return "byte_piece", ", ".join(list(dict.fromkeys(found))[:8])
    if text.isascii():
        data = text.encode()
    else:
        if "\ufffd" in text:
            return "replacement_character", f"{text.count(chr(0xFFFD))} x \ufffd"
        if ("Ġ" in text or "Ċ" in text or "▁" in text) and (found := _PIECE.findall(text)):
            return "byte_piece", ", ".join(repr(piece) for piece in list(dict.fromkeys(found))[:8])
        try:
            data = text.encode()
        except UnicodeEncodeError:
            surrogate = _SURROGATE.search(text)
            return "lone_surrogate", f"U+{ord(surrogate.group()):04X}" if surrogate else "half a surrogate pair"
    dirty = len(data) - len(data.translate(None, _CONTROL))
    return ("control_character", f"{dirty} control characters") if dirty else None
