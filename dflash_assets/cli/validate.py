"""`dflash-assets validate`: the rules and the report over a file of completions, whoever made them.

Here: options and printing. Not here: reading rows (`dflash_assets.validation.file_rows`) and running rules (`standalone`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from dflash_assets.errors import RecipeError

if TYPE_CHECKING:
    from dflash_assets.validation.event import ValidationContext
    from dflash_assets.validation.facts import ReportFacts
    from dflash_assets.validation.ruleset import RuleSet
    from dflash_assets.validation.standalone import FileResult


def validate(
    file: Annotated[Path, typer.Argument(help="JSONL (also .gz, .zst, .bz2) or Parquet of chat responses, messages or raw text.")],
    family: Annotated[
        Literal["chatml", "qwen3", "qwen3_5"] | None,
        typer.Option(help="Conversation format of the model; default qwen3_5 (XML tool calls), or the recipe's."),
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="Take family, tokenizer, rules and their limits from this recipe.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="dir:PATH, gguf:PATH or package:NAME; rows that hold output_ids are then checked against their text.")
    ] = None,
    thinking: Annotated[
        bool, typer.Option("--thinking/--no-thinking", help="Mode of rows that don't say theirs: reasoning is required with thinking on.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for report.html, report.md and report.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json instead of the summary.")] = False,
) -> None:
    """Run the rules of a recipe over a file of completions and write the same report. No pipeline is needed.

    Each line is a chat response (`choices`), a conversation (`messages`), an assistant message, `{"text": ...}` or a JSON
    string; `tools`, `prompt`, `source`, `thinking` and `request` beside it are used where they are. Ends with 1 when a hard
    rule is over its limit, with 2 when an option must be changed.
    """
    import json

    from dflash_assets.validation.report import report_json, write_report
    from dflash_assets.validation.standalone import validate_file

    rules, context = _settings(family, recipe, tokenizer)
    result = validate_file(file, rules, context, thinking=thinking)
    if out is not None:
        write_report(result.facts, out)
    if as_json:
        # One machine-readable document; half a surrogate pair from the file must not end it.
        typer.echo(json.dumps(report_json(result.facts), indent=2))
    else:
        _print(Console(highlight=False), result, out)
    if not result.passed:
        raise typer.Exit(1)


def _settings(family: str | None, recipe: Path | None, tokenizer: str | None) -> tuple[RuleSet, ValidationContext]:
    from dflash_assets.recipe.load import load_recipe
    from dflash_assets.recipe.validation import ValidationSpec
    from dflash_assets.validation.event import ValidationContext
    from dflash_assets.validation.formats import format_of
    from dflash_assets.validation.pieces import PieceDecoder
    from dflash_assets.validation.ruleset import RuleSet

    loaded = load_recipe(recipe) if recipe is not None else None
    spec = loaded.validation if loaded else ValidationSpec()
    rules = RuleSet.from_spec(spec, on_length=loaded.generation.cut_answers if loaded else "drop")
    form = format_of(family or (loaded.target_model.family if loaded else "qwen3_5"))
    place = tokenizer or (loaded.target_model.tokenizer if loaded else None)
    if place is None:
        return rules, ValidationContext(form)
    from dflash_assets.assets.wiring import tokenizer_of
    from dflash_assets.recipe.model import TargetModel

    if loaded is not None and tokenizer is None:
        found = tokenizer_of(loaded.target_model, recipe.absolute().parent if recipe else Path())
    else:
        if not place.startswith(("dir:", "gguf:", "package:")):
            raise RecipeError(f"{place!r} names no tokenizer", where="--tokenizer", todo="give dir:PATH, gguf:PATH or package:NAME")
        model = TargetModel(name=place, family=form.name, tokenizer=place, context_length=1 << 20)  # pyright: ignore[reportArgumentType]
        found = tokenizer_of(model, Path.cwd())
    return rules, ValidationContext(form, PieceDecoder(found.decode), prompt_opens_think=found.prompt_opens_think)


def _print(console: Console, result: FileResult, out: Path | None) -> None:
    from dflash_assets.cli.summary import COLOURS, spot_check_table
    from dflash_assets.validation.facts import status_line
    from dflash_assets.validation.standalone import PART_ROWS
    from dflash_assets.validation.statistics import share_in_words

    facts = result.facts
    console.print(spot_check_table(facts))
    failing = [share for share in facts.shares if share.failed]
    if failing:
        table = Table("", "verdict", "failing", "reasons", title="Rules with failing rows", title_justify="left")
        for share in failing:
            verdict = f"[{COLOURS[share.verdict]}]{share.verdict.replace('_', ' ')}[/]"
            words = share_in_words(share.failed, share.n, facts.confidence)
            table.add_row(f"{share.rule} ({share.severity})", verdict, words, _plain(_reasons(facts, share.rule)))
        console.print(table)
    for example in _first_offenders(facts):
        console.print(f"  {_plain(example)}", soft_wrap=True)
    for found in facts.breaks:
        before, after = (share_in_words(count.failed, count.n, facts.confidence) for count in (found.before, found.after))
        console.print(
            f"  {found.rule} changes at row {found.shard * PART_ROWS + 1:,}: fails {before} before, {after} from there on", soft_wrap=True
        )
    for odd in facts.odd[:5]:
        rows = f"rows {odd.shard * PART_ROWS + 1:,} to {(odd.shard + 1) * PART_ROWS:,}"
        console.print(f"  {rows} are unlike the others: {odd.rule} fails {odd.failed} of {odd.n}, elsewhere {odd.others_share:.2%}")
    for note in facts.run.notes[:5]:
        console.print(f"  {_plain(note)}", soft_wrap=True)
    console.print(status_line(facts))
    verdict = "[green]passed[/]" if result.passed else f"[red]failed[/]: {', '.join(result.broken)}"
    console.print(f"{verdict}; {result.clean_rows:,} of {result.rows:,} rows break no hard rule")
    console.print(
        f"next: [bold]open {out / 'report.html'}[/]" if out else "next: give [bold]--out DIR[/] for the whole report with plots and samples"
    )


def _reasons(facts: ReportFacts, rule: str) -> str:
    counted = facts.tally.rules.get(rule)
    return ", ".join(f"{reason} {count:,}" for reason, count in counted.reasons.most_common(3)) if counted else ""


def _first_offenders(facts: ReportFacts) -> list[str]:
    """One line for the worst offender of each rule."""
    found: list[str] = []
    for rule, examples in facts.offenders.items():
        for example in examples[:1]:
            details = [f"{reason}: {detail}" for name, reason, detail in example.failures if name == rule]
            found.append(f"{example.event_id} fails {rule}: {details[0]}")
    return found


def _plain(text: str) -> str:
    """Text from somebody's file: no markup, nothing a terminal can't print."""
    return "".join(char if char.isprintable() else " " for char in text).replace("[", "\\[")
