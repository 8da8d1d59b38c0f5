"""The report: one Markdown page, one self-contained HTML page, one JSON file, all from the same facts.

Here: filling the templates and the JSON. Not here: the facts (`facts.py`), the plots (`plots.py`) and the words and looks of the
pages (`templates/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_assets.resources.store_scope import ranges_text
from dflash_assets.tables import write_text
from dflash_assets.validation.facts import ReportFacts, StratumShare, duration, spot_check_rows, status_line
from dflash_assets.validation.plots import plots_of
from dflash_assets.validation.shares import RuleShare
from dflash_assets.validation.statistics import ShareVerdict, share_in_words

if TYPE_CHECKING:
    from jinja2 import Environment

VERDICT_WORDS: Mapping[ShareVerdict, str] = {
    "pass": "pass",
    "fail": "FAIL",
    "cannot_tell": "cannot tell yet",
    "not_tested": "not tested",
    "counted": "counted",
}


def write_report(facts: ReportFacts, out: Path) -> list[Path]:
    """Write `report.md`, `report.html` and `report.json` into a folder, each whole or not at all; returns their paths."""
    values = _values(facts)
    pages = {
        "report.md": _environment(html=False).get_template("report.md.jinja").render(values),
        "report.html": _environment(html=True).get_template("report.html.jinja").render(values | {"plots": plots_of(facts)}),
        "report.json": json.dumps(report_json(facts), ensure_ascii=False, indent=2) + "\n",
    }
    return _write(pages, out)


def report_markdown(facts: ReportFacts) -> str:
    """The Markdown page: also what an asset check shows."""
    return _environment(html=False).get_template("report.md.jinja").render(_values(facts))


def report_json(facts: ReportFacts) -> dict[str, Any]:
    """The facts as JSON values; texts of examples stay out."""
    tally, run = facts.tally, facts.run
    return {
        "recipe": run.recipe,
        "description": run.description,
        "model": run.model,
        "engine": run.engine,
        "made_at": run.made_at.isoformat() if run.made_at else None,
        "confidence": facts.confidence,
        "status": {**asdict(run.status), "complete": run.status.complete, "line": status_line(facts)},
        "spot_check": [asdict(row) for row in spot_check_rows(facts)],
        "rules": [
            {**asdict(share), "reasons": dict(tally.rules[share.rule].reasons) if share.rule in tally.rules else {}}
            for share in facts.shares
        ],
        "set_rules": [{"rule": found.rule, "severity": found.severity, **asdict(found.result)} for found in facts.sets],
        "strata": [{"dimension": found.dimension, "value": found.value, **asdict(found.share)} for found in facts.strata],
        "odd_shards": [asdict(odd) for odd in facts.odd],
        "breaks": [asdict(found) for found in facts.breaks],
        "outcomes": dict(tally.outcomes),
        "conversations": [asdict(found) for found in facts.conversations],
        "later_turns": dict(sorted(tally.later_turns.items())),
        "finish_reasons": dict(tally.finish_reasons),
        "tokens": {"prompt": tally.prompt_tokens, "output": tally.output_tokens},
        "sources": [asdict(source) for source in run.sources],
        "ledger": [asdict(total) for total in run.ledger],
        "training_set": asdict(run.training_set) if run.training_set else None,
        "duplicates": [asdict(group) for group in sorted(tally.duplicates.values(), key=lambda group: -group.prompts)[:20]],
        "offenders": {rule: [example.event_id for example in examples] for rule, examples in facts.offenders.items()},
        "notes": list(run.notes),
        "files": dict(run.files),
        "next_command": run.next_command,
    }


def _values(facts: ReportFacts) -> dict[str, Any]:
    tally = facts.tally
    return {
        "facts": facts,
        "run": facts.run,
        "tally": tally,
        "rows": spot_check_rows(facts),
        "status": status_line(facts),
        "words": VERDICT_WORDS,
        "claim": lambda share: share_in_words(share.failed, share.n, facts.confidence),
        "more": _more,
        "reasons": lambda rule: tally.rules[rule].reasons.most_common(5) if rule in tally.rules else [],
        "strata": _telling(facts.strata),
        "odd": facts.odd[:20],
        "duration": duration,
        "gpu_days": facts.run.status.gpus * facts.run.status.seconds / 86400
        if facts.run.status.seconds and facts.run.status.gpus
        else None,
    }


def _telling(strata: Sequence[StratumShare]) -> list[StratumShare]:
    """Strata worth a line on the page: those with failures, worst first; the JSON file has all."""
    failing = [found for found in strata if found.share.failed]
    return sorted(failing, key=lambda found: (found.share.verdict != "fail", -found.share.failed / found.share.n))[:40]


def _more(share: RuleShare) -> str:
    """How many more rows would tell."""
    if share.verdict != "cannot_tell":
        return ""
    return f"{share.more_rows:,} more rows would tell" if share.more_rows else "no number of rows would tell: the share is at its limit"


def _environment(*, html: bool) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_unbroken if html else None,
    )
    environment.filters["number"] = _number
    environment.filters["cell"] = _cell
    environment.filters["ranges"] = ranges_text
    return environment


def _unbroken(value: object) -> object:
    """Keeps a number and its per cent sign on one line of a page."""
    return value.replace(" %", "\u00a0%") if type(value) is str else value


def _number(value: int | None) -> str:
    """A count with thousands separated; a dash for what isn't known."""
    return "–" if value is None else f"{value:,}"


def _cell(value: object) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(str(value).replace("|", "\\|").replace("`", "'").split())


def _write(pages: Mapping[str, str], out: Path) -> list[Path]:
    for name, text in pages.items():
        # A text may quote half a surrogate pair from somebody's file.
        write_text(out / name, text.encode("utf-8", "backslashreplace").decode())
    return [out / name for name in pages]
