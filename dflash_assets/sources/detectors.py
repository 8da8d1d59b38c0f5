"""What a secret looks like: one detector a type, as data.

Here: patterns, what must be in a text before a pattern is tried, and checks that a match must pass. Not here: replacing
and walking (`redact`). Key formats are the providers' published prefixes; numbers must pass Luhn and an issuer prefix,
so that maths stays maths.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Detector:
    """One type of finding. With a group in its pattern only the group is replaced, else the whole match."""

    kind: str
    """Name in the placeholder and in the report."""
    pattern: re.Pattern[str]
    """What it looks like."""
    needles: tuple[str, ...]
    """The pattern is only tried on texts that hold one of these; empty: always."""
    confirm: Callable[[re.Match[str]], bool] | None = None
    """Second look at a match."""
    strict_only: bool = False
    """Only under the policy `strict`."""
    any_case: bool = False
    """The needles are compared in lower case."""


def _luhn(digits: str) -> bool:
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if position % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


_ISSUERS = re.compile(
    r"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}|6(?:011|5\d\d)\d{12}"
)


def _is_card(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match.group())
    return _ISSUERS.fullmatch(digits) is not None and _luhn(digits)


def _is_real_mail(match: re.Match[str]) -> bool:
    # RFC 2606 reserves these for examples.
    return not re.search(r"(?:^|[@.])(?:example\.(?:com|org|net)|[\w-]+\.(?:example|test|invalid|localhost))$", match.group().lower())


def _is_address(match: re.Match[str]) -> bool:
    parts = [int(part) for part in match.group().split(".")]
    return all(part <= 255 for part in parts) and parts[0] not in (0, 127) and parts != [255] * 4


_END = r"(?![A-Za-z0-9_-])"
DETECTORS = (
    Detector(
        "private_key",
        re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:[A-Za-z0-9+/=\s:,.()-]|\\+[nr])*", re.DOTALL),
        ("PRIVATE KEY",),
    ),
    Detector(
        "api_key",
        re.compile(r"(?<![A-Za-z0-9_-])sk-(?:ant-|or-v1-|proj-|svcacct-|admin-)?[A-Za-z0-9_-]{16,}" + _END),
        ("sk-",),
        lambda match: any(letter.isdigit() or letter.isupper() for letter in match.group()[3:]),
    ),
    Detector("google_key", re.compile(r"AIza[A-Za-z0-9_-]{35}" + _END), ("AIza",)),
    Detector("aws_key", re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"), ("AKIA", "ASIA")),
    Detector(
        "aws_secret",
        re.compile(r"(?i)(?<=secret)(?:[_-]?(?:access)?[_-]?key)[\"'\\\s:=]{1,8}([A-Za-z0-9/+=]{40})(?![A-Za-z0-9/+=])"),
        ("secret",),
        any_case=True,
    ),
    Detector(
        "github_token",
        re.compile(r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    ),
    Detector("slack_token", re.compile(r"xox[abeprs]-[A-Za-z0-9-]{10,}"), ("xox",)),
    Detector("huggingface_token", re.compile(r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{20,}"), ("hf_",)),
    Detector("nvidia_key", re.compile(r"(?<![A-Za-z0-9])nvapi-[A-Za-z0-9_-]{20,}"), ("nvapi-",)),
    Detector("stripe_key", re.compile(r"(?<![A-Za-z0-9])[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"), ("k_live_", "k_test_")),
    Detector("gitlab_token", re.compile(r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{20,}"), ("glpat-",)),
    Detector("npm_token", re.compile(r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}" + _END), ("npm_",)),
    Detector("pypi_token", re.compile(r"(?<![A-Za-z0-9])pypi-AgE[A-Za-z0-9_-]{50,}"), ("pypi-AgE",)),
    Detector("sendgrid_key", re.compile(r"(?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}"), ("SG.",)),
    Detector("telegram_token", re.compile(r"(?<![A-Za-z0-9])\d{8,10}:AA[A-Za-z0-9_-]{33}" + _END), (":AA",)),
    Detector("azure_key", re.compile(r"(?<=AccountKey=)[A-Za-z0-9+/]{80,90}={0,2}"), ("AccountKey=",)),
    Detector("jwt", re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"), ("eyJ",)),
    Detector(
        "authorization",
        re.compile(r"(?i)\b(?:bearer|basic)\s+([A-Za-z0-9._~+/=-]{16,})"),
        ("bearer", "basic"),
        lambda match: any(letter.isdigit() for letter in match.group(1)),
        any_case=True,
    ),
    Detector(
        "cookie",
        # Possessive and bounded: with `\s*` and `+=` a megabyte of spaces, or of `cookie:`, takes an hour.
        re.compile(r"(?i)\b(?:set-)?cookie(?:\\*[\"'])?\s*+:\s*+(?:\[\s*+)?(?:\\*[\"'])?([^\"'\\\r\n=]{1,1024}+=[^\"'\\\r\n]+)"),
        ("cookie",),
        any_case=True,
    ),
    Detector(
        "header",
        re.compile(
            r"(?i)\b(?:(?:proxy-)?authorization|(?:x-|x-goog-)?api-key)(?:\\*[\"'])?\s*:\s*(?:\[\s*)?(?:\\*[\"'])?(?!\[REDACTED)([^\"'\\\r\n]{8,})"
        ),
        ("authorization", "api-key"),
        lambda match: any(letter.isdigit() for letter in match.group(1)),
        any_case=True,
    ),
    Detector("url_password", re.compile(r"(?<=://)[^\s/:@\"'<>]{1,64}:([^\s/:@\"'<>]{1,128})(?=@)"), ("://",)),
    Detector(
        "email",
        re.compile(r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9](?:[A-Za-z0-9._%+-]{0,63})@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![A-Za-z0-9-])"),
        ("@",),
        _is_real_mail,
    ),
    Detector("card_number", re.compile(r"(?<![\d.,A-Za-z])(?:\d[ -]?){12,18}\d(?![\d]|[.,]\d|[A-Za-z])"), (), _is_card),
    Detector(
        "password",
        re.compile(
            r"(?i)(?<![A-Za-z])(?:password|passwd|pwd|passphrase|api[_-]?key|secret|access[_-]?token)(?:\\*[\"'])?\s*(?:=|:|\bis\b)\s*(?:\\*[\"'])?([^\s\"'\\,;&<>{}()\[\]]{6,})"
        ),
        ("passw", "pwd", "passphrase", "key", "secret", "token"),
        lambda match: any(letter.isdigit() for letter in match.group(1)),
        True,
        True,
    ),
    Detector("ssn", re.compile(r"(?<![\d-])(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\d-])"), ("-",), None, True),
    Detector(
        "phone",
        re.compile(
            r"(?<![\w.+-])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{2,4}(?:[ .-]\d{2,4}){1,4}|\(\d{3}\) ?\d{3}-\d{4}|\d{3}-\d{3}-\d{4})(?![\w-])"
        ),
        ("+", "-"),
        None,
        True,
    ),
    Detector("ip_address", re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)"), (".",), _is_address, True),
    Detector(
        "home_directory",
        re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\+Users\\+)(?!\[REDACTED|user\b|runner\b|ubuntu\b)([A-Za-z0-9._-]+)"),
        ("/home/", "Users"),
        None,
        True,
    ),
)
