"""The page of `dflash-assets plan`: a table of the sources, a line for each thing a run takes, notes, what is missing.

Here: words and columns. Not here: any number (`dflash_assets.forecast`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dflash_assets.forecast.answers import ASSUMED_SHARE
from dflash_assets.forecast.forecast import Assumptions, Forecast, Range
from dflash_assets.recipe.generation import SglangEngine
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.recipe.sources import SourceSpec, TakeShare, TakeTokens
from dflash_assets.resources.discovery import Found

WIDE = 100
"""Columns of a terminal from which the table says where sources come from."""
BASES = {"assumed": "assumed", "given": "given", "measured": "measured", "measured_other_sources": "as others"}


def print_plan(
    console: Console,
    recipe: Recipe,
    path: Path,
    found: Forecast,
    wish: Assumptions,
    *,
    free: int | None,
    missing: Sequence[str],
    store_fault: str | None,
    names: Sequence[Found] = (),
) -> None:
    """Print it. `free`: bytes free where the store is, None for a bucket; `missing`: what keeps the recipe from running; `names`: what
    the DNS names of servers come to."""
    console.print(_sources(recipe, found, wide=console.width >= WIDE))
    facts = Table.grid(padding=(0, 2))
    for name, text in _facts(recipe, found, wish, free):
        facts.add_row(f"[bold]{name}[/]", text)
    for name in names:
        said = (
            f"{len(name.urls)} behind {name.name.dns}:{name.name.port} now"
            if name.problem is None
            else f"none: {name.name.dns} {name.problem}"
        )
        facts.add_row("[bold]servers[/]", said)
    for note in [*_notes(recipe, found, wish, store_fault), *_no_server(recipe, names)]:
        facts.add_row("[yellow]note[/]", note)
    console.print(facts)
    _say_ready(console, missing, path)


def _sources(recipe: Recipe, found: Forecast, *, wide: bool) -> Table:
    """One line a source. `from` is for wide terminals; `accepted` and the bases of lengths stand only where they tell something."""
    read = any(prompts.accepted is not None for prompts in found.prompts.sources)
    mixed = len({length.basis for length in found.lengths.values()}) > 1
    table = Table(title=f"{recipe.name}: {recipe.target_model.name}", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("source", no_wrap=True)
    if wide:
        table.add_column("from", overflow="fold")
    for name in ("take", *(["accepted"] if read else []), "prompts", "tokens/answer"):
        table.add_column(name, justify="right", no_wrap=True)
    for source, prompts in zip(recipe.sources, found.prompts.sources, strict=True):
        length = found.lengths[source.name]
        basis = f" {BASES[length.basis]}" if mixed else ""
        accepted = [f"{prompts.accepted:,}" if prompts.accepted is not None else "not read"] if read else []
        expected = "not known" if prompts.expected is None else f"{'' if prompts.basis == 'blend' else 'max '}{prompts.expected:,}"
        where = [_where(source)] if wide else []
        table.add_row(source.name, *where, _take(source), *accepted, expected, f"{length.mean:,.0f}{basis}")
    return table


def _where(source: SourceSpec) -> str:
    if source.hub is not None:
        return f"{source.hub.repo or '[red]not set[/]'} @ {source.hub.revision[:7] if source.hub.revision else '[red]not pinned[/]'}"
    return source.path or ""


def _take(source: SourceSpec) -> str:
    if isinstance(source.take, TakeShare):
        return f"{source.take.share:.1%}"
    if isinstance(source.take, TakeTokens):
        return f"{source.take.tokens:,} tokens"
    return f"{source.take:,}" if isinstance(source.take, int) else source.take


def _facts(recipe: Recipe, found: Forecast, wish: Assumptions, free: int | None) -> Iterator[tuple[str, str]]:
    prompts, time, disk = found.prompts, found.time, found.disk
    samples = recipe.generation.samples_per_prompt
    yield (
        "prompts",
        f"{prompts.expected:,}{'' if prompts.exact else ' at most'} in {found.shards:,} shards of {recipe.blend.shard_size}"
        + (f", {samples} answers each" if samples > 1 else ""),
    )
    todo = found.answers_done and found.answers_done < found.answers
    if found.answers_done:
        yield "done", f"{found.answers_done:,} of {found.answers:,} answers, {found.shards_done:,} of {found.shards:,} shards"
    basis = (
        "counted" if prompts.tokens_exact else f"{found.mean_prompt_tokens:,.0f} each, {'given' if wish.mean_prompt_tokens else 'assumed'}"
    )
    yield "prompt tokens", f"{_count(found.prompt_tokens)} ({basis})"
    yield (
        "answer tokens",
        f"{_range(found.answer_tokens, _count)}; {found.length.mean:,.0f} each, {BASES[found.length.basis]}"
        f" (limit {recipe.generation.sampling.max_tokens:,})" + (f"; {_range(found.answer_tokens_left, _count)} to go" if todo else ""),
    )
    gpus = f"{time.gpus} GPUs" if time.gpus else f"engine {recipe.generation.engine.kind}"
    if time.hours is not None and time.hours_left is not None and time.tokens_per_second is not None:
        each = f", {time.tokens_per_second / time.gpus:,.0f} each" if time.gpus else ""
        left = f"; {_range(time.hours_left, _hours)} to go" if todo else ""
        speed = f"{time.tokens_per_second:,.0f} tok/s, {time.basis}, in all ({gpus}{each})"
        yield "time", f"{_range(time.hours, _hours)}{left} at {speed}"
        if time.cost is not None and time.cost_left is not None:
            left = f"; {_range(time.cost_left, _money)} to go" if todo else ""
            yield "cost", f"{_range(time.cost, _money)}{left}"
    else:
        yield "time", f"not known for {gpus}: give --tokens-per-second"
    parts = ", ".join(f"{name.replace('_', ' ')} {_bytes(size)}" for name, size in disk.parts.items())
    room = f"{_bytes(free)} free" if free is not None else "a bucket"
    yield "disk", f"{_bytes(disk.total)} in {recipe.store_root} ({room}): {parts}"


def _notes(recipe: Recipe, found: Forecast, wish: Assumptions, store_fault: str | None) -> Iterator[str]:
    if store_fault:
        yield f"the store can't be read, so nothing that is done is counted: {store_fault}"
    if any(length.basis == "assumed" for length in found.lengths.values()):
        yield (
            f"no answer was measured: {ASSUMED_SHARE:.0%} of max_tokens is assumed, the interval is 25 % to 100 % of it. The first "
            "finished shards replace this; --mean-answer-tokens sets it."
        )
    if replayed := [source.name for source in recipe.sources if source.replay == "conversation"]:
        several = f"conversations of {', '.join(replayed)} get several answers"
        if found.answers_done:
            yield f"{several}: {found.answers_a_prompt:.2f} a prompt in the shards so far, over all sources; the rest is reckoned alike."
        else:
            yield f"{several}, and one a prompt is counted until shards are there: tokens, time and disk are lower bounds."
    if not found.prompts.exact:
        yield "duplicates and contamination are known once the blend is made, so prompts are upper bounds."
    if wish.gpu_hour_price is not None and not found.time.gpus:
        yield "no cost: the recipe names no GPUs (generation.engine.servers[].gpus)."
    if found.disk.unknown:
        yield f"disk doesn't count {', '.join(found.disk.unknown)}."


def _no_server(recipe: Recipe, names: Sequence[Found]) -> Iterator[str]:
    engine = recipe.generation.engine
    if names and not any(name.urls for name in names) and isinstance(engine, SglangEngine) and not engine.servers:
        yield (
            "no server can be found from here, and a run from here would end so: start them, or correct generation.engine.discover. A name of "
            "a Kubernetes service is known inside the cluster only."
        )


def _say_ready(console: Console, missing: Sequence[str], recipe: Path) -> None:
    if missing:
        console.print("[bold red]not ready:[/]")
        for problem in missing:
            said = problem.replace("dflash-assets pin RECIPE", f"dflash-assets pin {recipe}")
            console.print(f"  {said}", markup=False, soft_wrap=True)
        console.print(f"next: mend these in {recipe}, then [bold]dflash-assets plan {recipe}[/] again", soft_wrap=True)
    else:
        console.print(f"ready. next: [bold]dflash-assets doctor {recipe}[/], then [bold]dflash-assets run {recipe}[/]", soft_wrap=True)


def _range(found: Range, say: Callable[[float], str]) -> str:
    """`20 h (5.5 h to 22 h)`; without the bracket when both ends read the same."""
    expected, low, high = say(found.expected), say(found.low), say(found.high)
    return expected if low == high == expected else f"{expected} ({low} to {high})"


def _count(value: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e4)):
        if value >= size:
            return f"{value / (1e3 if unit == 'K' else size):,.1f}{unit}"
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value / 1e3:,.0f} kB"


def _hours(value: float) -> str:
    return f"{value:,.1f} h" if value >= 1 else f"{value * 60:,.0f} min"


def _money(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:,.2f}"
