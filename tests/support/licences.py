"""`python -m tests.support.licences > docs/licences.md`: the licences of all packages in requirements.lock, from what is installed.

Here: reading and naming them. Which of them are allowed is tests/test_licences.py's business.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from tests.support.project import ROOT

REVIEWED = {
    # Packages whose metadata names no licence, or only a text of their own: read in their licence files.
    "cycler": "BSD-3-Clause",
    "fastokens": "Apache-2.0",
    "kiwisolver": "BSD-3-Clause",
    "matplotlib": "PSF-2.0",
    "pathlib-abc": "PSF-2.0",
    "pysimdjson": "MIT",
    "transformers": "Apache-2.0",
}
ELSEWHERE = {
    # Installed on other systems only.
    "colorama": "BSD-3-Clause",
    "httpx2-jsfetch": None,
    "pyreadline3": "BSD-3-Clause",
    "pywin32": "PSF-2.0",
}
_NAMES = (
    (r"apache", "Apache-2.0"),
    (r"mozilla|mpl", "MPL-2.0"),
    (r"python software foundation|psf", "PSF-2.0"),
    (r"isc", "ISC"),
    (r"2-clause", "BSD-2-Clause"),
    (r"bsd", "BSD-3-Clause"),
    (r"mit\b", "MIT"),
)


@dataclass(frozen=True, slots=True)
class Licensed:
    """One package of the lock: `licence` as an SPDX expression, None when it can't be told; `where` says on which systems only."""

    name: str
    licence: str | None
    where: str | None


def locked() -> dict[str, str | None]:
    """Names in requirements.lock, each with its marker where it isn't installed everywhere."""
    found: dict[str, str | None] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if match := re.match(r"([\w.-]+)==[^ ;]+(?: ; (.*))?", line):
            found[match.group(1)] = match.group(2)
    return found


def licensed() -> list[Licensed]:
    """Every package of the lock with its licence."""
    found: list[Licensed] = []
    for name, marker in sorted(locked().items()):
        if name in ELSEWHERE:
            found.append(Licensed(name, ELSEWHERE[name], marker))
        else:
            found.append(Licensed(name, REVIEWED.get(name) or licence_of(importlib.metadata.metadata(name)), None))
    return found


def licence_of(metadata: importlib.metadata.PackageMetadata) -> str | None:
    """Licence by a package's metadata: its expression, else the names in its classifiers, else its short text."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    said = [value.split("::")[-1] for value in metadata.get_all("Classifier", []) if value.startswith("License ::")]
    text = (metadata.get("License") or "").splitlines()
    if re.fullmatch(r"[\w.-]+-[\d.]+(-Clause)?( (AND|OR) [\w.-]+)*|MIT", " ".join(text)):
        return " ".join(text)  # an expression in the old field says more than classifiers do
    names = [spdx for value in said or text[:1] if (spdx := _spdx(value)) is not None]
    return " OR ".join(dict.fromkeys(names)) or None


def _spdx(text: str) -> str | None:
    return next((spdx for pattern, spdx in _NAMES if re.search(pattern, text.lower())), None)


def page() -> str:
    """The page."""
    rows = [f"| {one.name} | {one.licence or 'not looked at'} |{f' only where `{one.where}`' if one.where else ''} |" for one in licensed()]
    return "\n".join(
        [
            "# Licences",
            "",
            "Packages of `requirements.lock`, which `make demo` installs, and their licences as their metadata says. Written by",
            "`make schema`; a test holds it current, and fails for a licence that is neither permissive nor weak copyleft (MPL-2.0: files",
            "of the package itself stay under it, yours don't come under it). None is vendored or changed here.",
            "",
            "| package | licence | |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    print(page(), end="")
