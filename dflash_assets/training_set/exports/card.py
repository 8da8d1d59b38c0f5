"""The dataset card (README.md) of an export: what is in it, from where, made how, and what it is not.

Here: the Markdown text and the front matter a dataset hub reads. Not here: any figure that the manifests don't hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dflash_assets.tables import canonical_json
from dflash_assets.training_set.certificate import sentence
from dflash_assets.training_set.contracts import SPLITS
from dflash_assets.training_set.exports.base import ExportContext, Written

_MIX_TITLES = {"source": "Source", "origin": "Origin", "mode": "Mode", "category": "Category", "is_tool_call": "Tool call"}


def dataset_card(kind: str, manifest: dict[str, Any], written: Written, context: ExportContext) -> str:
    """Markdown with YAML front matter, from the training set's manifest and what the export wrote."""
    totals = {"rows": manifest["rows"], "tokens": manifest["tokens"], "supervised_tokens": manifest["supervised_tokens"]}
    parts = [
        _front_matter(written, context),
        f"# {context.name}: {kind}\n",
        context.description
        or "Training set for a speculative-decoding drafter: answers of the target model, as the target model wrote them.",
        f"\nTarget model: `{context.model or 'unknown'}`" + (f" at `{context.model_revision}`" if context.model_revision else "") + "\n",
        _table(("Split", "Rows"), [(split, written.rows[split]) for split in SPLITS]),
        "## Training set\n",
        f"{totals['rows']:,} rows, {totals['tokens']:,} tokens, {totals['supervised_tokens']:,} of them supervised. "
        "One row is one generation; the loss mask covers what the model generated and nothing else.\n",
    ]
    for name, title in _MIX_TITLES.items():
        values = manifest["mix"].get(name, {})
        rows = [
            (value, f"{c['rows']:,}", f"{c['rows'] / max(1, totals['rows']):.1%}", f"{c['tokens']:,}", f"{c['supervised_tokens']:,}")
            for value, c in values.items()
        ]
        parts.append(_table((title, "Rows", "Share", "Tokens", "Supervised tokens"), rows))
    sources = manifest["mix"].get("source", {})
    rows = [(source, context.licences.get(source, "not stated"), context.revisions.get(source, "not stated")) for source in sources]
    parts += ["## Sources and licences\n", _table(("Source", "Licence", "From"), rows)]
    if manifest.get("certificate"):
        parts += ["## Certificate\n", f"Checked on every answer: {sentence(manifest['certificate'])}.\n"]
    parts += [
        "## How it was made\n",
        _table(("Fingerprint", "Value"), [(name, f"`{value}`") for name, value in sorted(manifest["fingerprints"].items())]),
    ]
    if context.sampling:
        parts.append(_table(("Sampling", "Value"), [(name, str(value)) for name, value in context.sampling.items()]))
    parts.append(f"Settings: `{canonical_json(manifest['settings'])}`\n")
    parts += ["## What is not in it\n", *_limits(manifest, written)]
    return "\n".join(parts)


def _front_matter(written: Written, context: ExportContext) -> str:
    licences = {licence.lower() for licence in context.licences.values()}  # the hub's identifiers are in lower case
    lines = ["---", f"license: {licences.pop() if len(licences) == 1 else 'other'}", "tags:", "- speculative-decoding"]
    if written.data_files:
        lines += ["configs:", "- config_name: default", "  data_files:"]
        lines += [f"  - split: {split}\n    path: {pattern}" for split, pattern in written.data_files.items() if written.rows[split]]
    return "\n".join([*lines, "---", ""])


def _limits(manifest: dict[str, Any], written: Written) -> list[str]:
    rows = [
        ("training set", f"{origin}: {reason}", f"{count:,}")
        for origin, reasons in manifest["dropped"].items()
        for reason, count in reasons.items()
    ]
    rows += [("this export", reason, f"{count:,}") for reason, count in sorted(written.left_out.items())]
    text = [_table(("Left out by", "Reason", "Rows"), rows)] if rows else ["Nothing was left out.\n"]
    unterminated = [
        f"{share:.1%} of the {side} rows end without an end token (cut at the token limit, kept open)."
        for side in ("new", "existing")
        if (share := manifest["drift"][side]["unterminated_share"])
    ]
    return [*text, *(f"- {sentence}" for sentence in [*unterminated, *manifest["warnings"], *written.notes]), ""]


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join([*lines, ""])
