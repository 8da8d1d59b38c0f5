"""Secrets and personal data out of text: typed, stable placeholders, counted by type, values never repeated.

Here: the walk through messages, arguments and specs. Not here: the detectors (`detectors`) and HTTP headers, which no
reader ever passes on. It runs before hashing, so ids, files, logs and the target model only ever see the redacted text.
`light` finds keys, tokens, cookies, private keys, e-mail and card numbers; `strict` also password
assignments, phone and social security numbers, IP addresses and user names in home directories.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from dflash_assets.sources.detectors import DETECTORS, Detector
from dflash_assets.sources.literals import NotPlain, dump, parse_json

Policy = Literal["light", "strict"]
HEADER_KEYS = frozenset({"headers", "header", "query_params", "cookies", "cookie", "set-cookie", "authorization", "x-api-key"})
"""Keys of a log record that no excerpt may quote."""
_ADDRESS_KEYS = frozenset({"url", "uri", "path"})
"""Keys of a log record whose query is left out: `?key=...` needs no shape to be a credential."""

_SHORTEST = 6
"""No finding is shorter than this."""
_TELLING_KEY = re.compile(r"(?i)cookie|authorization|api-?key|passw|pwd|passphrase|secret|access[_-]?token")


@lru_cache(maxsize=4096)
def _tells(key: str) -> bool:
    return _TELLING_KEY.search(key) is not None


@dataclass(slots=True)
class Redactor:
    """Redacts texts under one policy and counts what it found, by type. `counts` holds no values."""

    policy: Policy
    counts: Counter[str] = field(default_factory=lambda: Counter[str]())

    def text(self, text: str) -> str:
        """Text with every finding replaced by `[REDACTED:<type>]`; JSON text stays JSON text."""
        if len(text) < _SHORTEST:
            return text
        found: Counter[str] = Counter()
        redacted = self._flat(text, found)
        if redacted == text:
            return text
        if text.lstrip()[:1] in ("{", "["):
            # Within JSON text a placeholder in place of a bare number, at any depth, would leave broken JSON: redact the values instead.
            try:
                value, _ = parse_json(text)
            except NotPlain:
                pass
            else:
                if isinstance(value, dict | list):
                    return dump(self.value(value))
        self.counts.update(found)
        return redacted

    def value(self, value: Any) -> Any:
        """A JSON value with all its texts, keys and card-like numbers redacted; the same object when nothing was found."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self._under(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, int) and not isinstance(value, bool) and value > 10**11:
            text = self.text(str(value))
            return value if text == str(value) else text
        return value

    def _under(self, key: str, item: Any) -> Any:
        """Value of a key: of keys like `cookie` and `password` the name is what gives the value away."""
        if not _tells(key):
            return self.value(item)
        if isinstance(item, list):
            return [self._under(key, part) for part in item]
        if not isinstance(item, str):
            return self.value(item)
        prefix = f"{key}: "
        redacted = self._flat(prefix + item, self.counts)
        return redacted.removeprefix(prefix) if redacted.startswith(prefix) else self.text(item)

    def _flat(self, text: str, found: Counter[str]) -> str:
        lowered: str | None = None
        for detector in DETECTORS:
            if detector.strict_only and self.policy != "strict":
                continue
            if detector.needles:
                haystack = text
                if detector.any_case:
                    lowered = haystack = text.lower() if lowered is None else lowered
                for needle in detector.needles:
                    if needle in haystack:
                        break
                else:
                    continue
            before = text
            text = detector.pattern.sub(lambda match, detector=detector: _replacement(match, detector, found), text)
            if text is not before:
                lowered = None
        return text


def _replacement(match: re.Match[str], detector: Detector, found: Counter[str]) -> str:
    if detector.confirm is not None and not detector.confirm(match):
        return match.group()
    found[detector.kind] += 1
    placeholder = f"[REDACTED:{detector.kind}]"
    if not match.re.groups:
        tail = match.group()[len(match.group().rstrip()) :] if detector.kind == "private_key" else ""
        return placeholder + tail
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return match.group()[:start] + placeholder + match.group()[end:]


def _without_query(key: str, item: Any) -> Any:
    return item.partition("?")[0] if isinstance(item, str) and str(key).lower() in _ADDRESS_KEYS else item


def excerpt(value: Mapping[str, Any] | str, limit: int = 300) -> str:
    """Beginning of a row for people: headers and queries of addresses left out, always redacted strictly, cut afterwards so that no secret is cut in half."""
    if not isinstance(value, str):
        value = dump({key: _without_query(key, item) for key, item in value.items() if str(key).lower() not in HEADER_KEYS})
    return Redactor("strict").text(value[:4000])[:limit]
