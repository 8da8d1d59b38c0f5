"""Every package we ask people to install has a licence a company's review lets in, and docs/licences.md says so."""

from __future__ import annotations

import re
from email.message import Message
from typing import Any

import pytest

from tests.support.licences import licence_of, licensed, locked, page
from tests.support.project import ROOT

PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-CMU", "PSF-2.0", "Zlib"),
    "MPL-2.0",
}


def allowed(expression: str) -> bool:
    """Whether every licence joined by AND is allowed, and one of those joined by OR."""
    parts = re.sub(r"[()]", "", expression)
    return all(any(name.strip() in PERMISSIVE for name in part.split(" OR ")) for part in parts.split(" AND "))


def test_every_locked_package_has_a_licence_that_is_allowed() -> None:
    found = licensed()
    assert len(found) == len(locked()) > 100
    assert [one.name for one in found if one.licence is None and one.where is None] == []
    assert [(one.name, one.licence) for one in found if one.licence is not None and not allowed(one.licence)] == []


def test_what_is_not_looked_at_never_reaches_a_machine_of_ours() -> None:
    unknown = [one for one in licensed() if one.licence is None]
    assert all("emscripten" in str(one.where) for one in unknown)


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "licences.md").read_text() == page(), "run `make schema`"


@pytest.mark.parametrize(
    ("expression", "well"),
    [("MIT", True), ("GPL-3.0-only", False), ("MIT OR GPL-3.0-only", True), ("MIT AND GPL-3.0-only", False), ("LGPL-2.1-only", False)],
)
def test_copyleft_is_found(expression: str, well: bool) -> None:
    assert allowed(expression) is well


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License-Expression": "MPL-2.0 AND MIT", "License": "x"}, "MPL-2.0 AND MIT"),
        ({"License": "GPL-3.0"}, "GPL-3.0"),
        ({"Classifier": "License :: OSI Approved :: BSD License"}, "BSD-3-Clause"),
        ({"Classifier": "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"}, None),
        ({"License": "Some words of a lawyer"}, None),
        ({}, None),
    ],
)
def test_a_licence_is_told_from_metadata_or_not_at_all(fields: dict[str, str], licence: str | None) -> None:
    metadata: Any = Message()
    for name, value in fields.items():
        metadata[name] = value
    assert licence_of(metadata) == licence
