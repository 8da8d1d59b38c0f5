"""The end of a server's log, fit to be shown: no secrets, no endless lines.

Here: reading the tail and masking. Not here: writing it (the process does) and naming it (`records`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_TAIL_BYTES = 64_000
_LINE_CHARACTERS = 400
_SECRET_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?$", re.IGNORECASE)
# Shapes of well-known credentials, and `api_key='...'` as SGLang prints its own arguments.
_SHAPES = re.compile(
    r"(?P<keep>(?:api[_-]?key|token|secret|password|authorization)['\"]?\s*[=:]\s*['\"]?(?:Bearer\s+)?)(?!None\b)[^\s'\",)}]{4,}"
    r"|\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}\b|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|(?<=Bearer )[A-Za-z0-9._~+/-]{8,}",
    re.IGNORECASE,
)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text with every known secret as `***`: values of variables named like secrets, and well-known shapes."""
    values = {value for name, value in (os.environ if environment is None else environment).items() if _SECRET_NAMES.search(name)}
    for value in sorted((value for value in values if len(value) >= 6), key=len, reverse=True):
        text = text.replace(value, "***")
    return _SHAPES.sub(lambda found: (found["keep"] or "") + "***", text)


def tail(log: Path, lines: int = 20) -> list[str]:
    """Last lines of a log that say something, masked, each cut at 400 characters; empty when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    said = [line.rstrip() for line in _COLOUR.sub("", text).replace("\r", "\n").splitlines() if line.strip()]
    return [line[:_LINE_CHARACTERS] for line in mask("\n".join(said[-lines:])).splitlines()]
