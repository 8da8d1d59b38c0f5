"""The whole forecast of a recipe: prompts, tokens, disk, hours and money, as one object with a JSON form.

Here: putting the parts together. Not here: the parts (`prompts`, `answers`, `disk`) and printing (`dflash_assets.cli.plan`).

Hours are output tokens divided by the output tokens a second of *all* GPUs together. Start-up and the tail, minutes of a night,
aren't in them. Once shards are committed their speed and their lengths are measured, and what is left is told apart from what is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from dflash_assets.assets.report_facts import active_seconds
from dflash_assets.forecast.answers import AnswerLength, MeasuredLengths, assumed, pooled
from dflash_assets.forecast.disk import Disk, forecast_disk, gpus_of
from dflash_assets.forecast.prompts import Prompts, forecast_prompts
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import Entry, Store, StoreFault

DEFAULT_PROMPT_TOKENS = 250.0
"""Assumed tokens of a prompt before the blend has rendered it; short ones (maths, code questions) have fewer, tool prompts thousands."""

MIN_SECONDS = 10.0
"""Progress of a shorter run says nothing about speed."""

SpeedBasis = Literal["given", "measured", "unknown"]


@dataclass(frozen=True, slots=True)
class Range:
    """A number with the ends between which it is believed to lie."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a person knows better than the recipe; None: taken from what is there, else assumed."""

    mean_prompt_tokens: float | None = None
    mean_answer_tokens: float | None = None
    tokens_per_second: float | None = None
    """Output tokens a second of all GPUs together."""
    gpu_hour_price: float | None = None


@dataclass(frozen=True, slots=True)
class Time:
    """How long the answers take."""

    tokens_per_second: float | None
    basis: SpeedBasis
    gpus: int
    hours: Range | None
    """For all answers of the recipe at this speed."""
    hours_left: Range | None
    """For those that aren't in a committed shard."""
    cost: Range | None
    """hours x GPUs x price of a GPU hour, in the price's currency."""
    cost_left: Range | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a recipe takes."""

    prompts: Prompts
    mean_prompt_tokens: float
    """What unrendered prompts were reckoned with."""
    lengths: Mapping[str, AnswerLength]
    """Answer length by source."""
    length: AnswerLength
    """Answer length of the answers that aren't there yet, over all sources; when all are there, theirs."""
    answers: int
    """Answers in all: prompts x samples x `answers_a_prompt`."""
    answers_a_prompt: float
    """Answers of a prompt (and sample): above 1 where conversations are replayed, as measured in committed shards; 1 before the first."""
    answers_done: int
    shards: int
    shards_done: int
    prompt_tokens: float
    """Over all answers: a prompt with n samples counts n times."""
    answer_tokens: Range
    answer_tokens_left: Range
    disk: Disk
    time: Time

    def data(self) -> dict[str, Any]:
        """As JSON values."""
        found = asdict(self)
        found["disk"]["total"] = self.disk.total
        return found


def forecast(recipe: Recipe, store: Store | None, base_dir: Path, wish: Assumptions | None = None) -> Forecast:
    """Forecast of a recipe. `store` None: nothing was made yet. Reads the manifest and a sample of the committed shards."""
    wish = wish or Assumptions()
    entries = store.entries() if store is not None else {}
    mean_prompt = wish.mean_prompt_tokens or DEFAULT_PROMPT_TOKENS
    prompts = forecast_prompts(recipe, entries, mean_prompt)
    samples = recipe.generation.samples_per_prompt
    made = _committed(entries)
    measured = MeasuredLengths.of(store.local(file.path) for entry in made.values() for file in entry.files) if store else MeasuredLengths()
    otherwise = assumed(recipe.generation.sampling.max_tokens, wish.mean_answer_tokens)
    believed = MeasuredLengths() if wish.mean_answer_tokens is not None else measured
    lengths = {source.source: believed.length(source.source, otherwise) for source in prompts.sources}
    replayed = {source.name for source in recipe.sources if source.replay == "conversation"}
    turns, grown = _growth(entries, made, samples) if replayed else (1.0, 1.0)
    weights = _weights(prompts, samples, made, replayed, turns)
    done_answers = sum(int(entry.facts["events"]) for entry in made.values())
    done_tokens = float(sum(entry.facts["output_tokens"] for entry in made.values()))
    if sum(weights.values()):
        length = pooled(lengths, weights)
    else:  # nothing is left: what it came to
        mean = done_tokens / max(1, done_answers)
        length = AnswerLength(mean, mean, mean, "measured", done_answers)

    answers = round(prompts.expected * samples * turns)
    left = max(0, answers - done_answers)
    tokens_left = Range(left * length.mean, left * length.low, left * length.high)
    tokens = Range(done_tokens + tokens_left.expected, done_tokens + tokens_left.low, done_tokens + tokens_left.high)
    prompt_tokens = prompts.tokens * samples * grown
    planned = [name for name in entries if name.startswith("prompts/shard-")]
    return Forecast(
        prompts=prompts,
        mean_prompt_tokens=mean_prompt,
        lengths=lengths,
        length=length,
        answers=answers,
        answers_a_prompt=turns,
        answers_done=done_answers,
        shards=len(planned) if prompts.exact else -(-prompts.expected // recipe.blend.shard_size),
        shards_done=len(made),
        prompt_tokens=prompt_tokens,
        answer_tokens=tokens,
        answer_tokens_left=tokens_left,
        disk=forecast_disk(recipe, entries, prompt_tokens=prompt_tokens, answer_tokens=tokens.expected, answers=answers, base_dir=base_dir),
        time=_time(recipe, store, made, tokens, tokens_left, wish),
    )


def _committed(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Committed shards of the present blend that hold answers."""
    made = {
        shard: entries.get(f"completions/{shard}") for shard in (n.removeprefix("prompts/") for n in entries if n.startswith("prompts/"))
    }
    return {shard: entry for shard, entry in made.items() if entry is not None and entry.facts.get("events")}


def _growth(entries: Mapping[str, Entry], made: Mapping[str, Entry], samples: int) -> tuple[float, float]:
    """What replaying conversations comes to, from the committed shards: answers a prompt, and tokens of all prompts that were sent over
    those of the first turns. The blend is shuffled, so any shards are a sample of all."""
    planned = [entries[f"prompts/{shard}"].facts for shard in made]
    first, tokens = (samples * sum(facts[name] for facts in planned) for name in ("rows", "tokens"))
    if not (first and tokens):
        return 1.0, 1.0
    answers, sent = (sum(entry.facts[name] for entry in made.values()) for name in ("events", "prompt_tokens"))
    return max(1.0, answers / first), max(1.0, sent / tokens)


def _weights(prompts: Prompts, samples: int, made: Mapping[str, Entry], replayed: Set[str], turns: float) -> dict[str, float]:
    """Answers still to come, by source. A source nobody has counted takes the prompts the others leave; answers to later turns, which make
    `turns` of each prompt's one, are those of the `replayed` sources."""
    unknown = [source.source for source in prompts.sources if source.expected is None]
    spare = prompts.expected - sum(source.expected or 0 for source in prompts.sources)
    counts = {source.source: float(source.expected if source.expected is not None else spare / len(unknown)) for source in prompts.sources}
    later = sum(counts.values()) * (turns - 1) / (sum(counts[name] for name in replayed) or 1)
    weights: dict[str, float] = {}
    for source in prompts.sources:
        count = counts[source.source] * (1 + later if source.source in replayed else 1)
        done = sum(entry.facts["sources"].get(source.source, 0) for entry in made.values())
        weights[source.source] = max(0.0, count * samples - done)
    return weights


def _time(recipe: Recipe, store: Store | None, made: Mapping[str, Entry], tokens: Range, left: Range, wish: Assumptions) -> Time:
    speed: float | None = wish.tokens_per_second
    basis: SpeedBasis = "given"
    if speed is None:
        speed, basis = _measured_speed(made, store), "measured"
    gpus = gpus_of(recipe)
    if not speed:
        return Time(None, "unknown", gpus, None, None, None, None)
    hours, hours_left = (Range(*(value / speed / 3600 for value in (part.expected, part.low, part.high))) for part in (tokens, left))
    cost = cost_left = None
    if wish.gpu_hour_price is not None and gpus:
        price = wish.gpu_hour_price * gpus
        cost, cost_left = (Range(part.expected * price, part.low * price, part.high * price) for part in (hours, hours_left))
    return Time(speed, basis, gpus, hours, hours_left, cost, cost_left)


def _measured_speed(made: Mapping[str, Entry], store: Store | None) -> float | None:
    """Output tokens a second so far, over all servers; None before the first answer.

    Of two averages the higher one: committed shards over the time they took lag behind while many shards are open, the last
    run's progress may be of a few answers only.
    """
    found: list[float] = []
    seconds = active_seconds([(entry.facts["began"], entry.facts["ended"]) for entry in made.values()])
    if seconds:
        found.append(sum(entry.facts["output_tokens"] for entry in made.values()) / seconds)
    progress = _progress(store)
    if progress.get("output_tokens") and progress.get("elapsed_seconds", 0) >= MIN_SECONDS:
        found.append(progress["output_tokens"] / progress["elapsed_seconds"])
    return max(found, default=None)


def _progress(store: Store | None) -> dict[str, Any]:
    try:
        return orjson.loads(store.local("progress.json").read_bytes()) if store is not None else {}
    except (OSError, StoreFault, orjson.JSONDecodeError):
        return {}
