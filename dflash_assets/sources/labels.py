"""Category and language of a row, from the row's own labels.

Here: the mapping of a recipe applied to a row, and how far a language label is believed (Infinity-Instruct labels
Chinese `ko`). Not here: telling a language from its text (`language`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dflash_assets.recipe.base import Category
from dflash_assets.recipe.sources import CategoryLabels
from dflash_assets.sources.language import SAMPLE_CHARACTERS, Told, known_languages, language_told

UNDETERMINED = "und"
_SURE, _NEXT_TO_NOTHING = 0.8, 0.4
"""Scores of the text's language and of the label's with which a label is not believed."""
_CODE = re.compile(r"[a-z]{2}")
_HAN, _KANA, _HANGUL = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3040-\u30ff]"), re.compile("[\uac00-\ud7af]")
_CYRILLIC, _ARABIC, _LATIN = re.compile("[\u0400-\u04ff]"), re.compile("[\u0600-\u06ff]"), re.compile("[A-Za-z\u00c0-\u024f]")
_SCRIPT_OF = {"ko": _HANGUL, "ru": _CYRILLIC, "uk": _CYRILLIC, "bg": _CYRILLIC, "ar": _ARABIC, "fa": _ARABIC, "ur": _ARABIC}


def category_of(row: dict[str, Any], labels: CategoryLabels, has_tools: bool) -> Category:
    """Category of a row: its label's, if the recipe maps it; else `tools` for a row with tools; else the default.

    An explicit mapping wins over `tools`, so that a recipe can keep code prompts with tools among the code prompts.
    """
    if labels.column is not None:
        for label in _values(row, labels.column.split(".")):
            if (found := labels.map.get(label)) is not None:
                return found
    return "tools" if has_tools else labels.default


def _values(node: Any, path: list[str]) -> Iterator[str]:
    """Labels at a dotted path; of lists, every element in order."""
    if isinstance(node, list):
        for item in node:
            yield from _values(item, path)
    elif path:
        if isinstance(node, dict) and path[0] in node:
            yield from _values(node[path[0]], path[1:])
    elif isinstance(node, str):
        yield node
    elif isinstance(node, int):
        yield str(node)


def unmapped_label(row: dict[str, Any], labels: CategoryLabels) -> str | None:
    """First label of a row that the recipe doesn't map, for the account of what could be mapped; None when one is mapped or there is none."""
    if labels.column is None:
        return None
    first: str | None = None
    for label in _values(row, labels.column.split(".")):
        if label in labels.map:
            return None
        first = label if first is None else first
    return first


def language_of(label: str | None, text: str, flags: set[str]) -> str:
    """ISO 639-1 code: the row's label, else what the text tells, else `und`.

    A label is not believed, flag `language_label_contradicted`, when its script doesn't occur in the text, or when the text
    is surely of another language and has next to nothing of the label's.
    """
    told = language_told(text)
    code = _code_of(label)
    if code is None:
        return told.language if told is not None else UNDETERMINED
    sample = text[:SAMPLE_CHARACTERS]
    proven = _proven(sample)
    script = _SCRIPT_OF.get(code)
    wrong = (script is not None and not script.search(sample)) or (
        proven is not None and proven != code and not _LATIN.search(sample) and code not in ("zh", "ja", "ko")
    )
    if wrong or (code in ("zh", "ja") and proven == "ko"):
        flags.add("language_label_contradicted")
        return proven or (told.language if told is not None and told.language != code else UNDETERMINED)
    if told is not None and told.language != code and code in known_languages() and _surely_another(told, code):
        flags.add("language_label_contradicted")
        return told.language
    return code


def _code_of(label: str | None) -> str | None:
    code = (label or "").strip().lower().split("-")[0].split("_")[0]
    return code if _CODE.fullmatch(code) else None


def _surely_another(told: Told, code: str) -> bool:
    return told.scores[told.language] >= _SURE and told.scores.get(code, 0.0) < _NEXT_TO_NOTHING


def _proven(sample: str) -> str | None:
    if _HANGUL.search(sample):
        return "ko"
    if _KANA.search(sample):
        return "ja"
    return "zh" if _HAN.search(sample) else None
