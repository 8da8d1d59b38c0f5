"""Bad content stops a run early: hard rules run on answers as they land, and a share that is surely over its limit is an alarm.

Here: which answers are checked, counts by rule and stratum, when a count is an alarm. Not here: the rules and the arithmetic of
intervals, which are handed in (`ContentRules`), and stopping (`window`).

Strata are the whole run, each source, each category, with and without tools, with and without thinking: a tool format that
breaks is 100 % of the tools and 1 % of the run. Looking again and again at many counts would find a chance excess in some of
them, so the error a recipe's confidence allows (5 %) is spent once: divided by the number of counts, and by k(k+1) at the k-th look
at one of them, with looks a tenth of the rows apart. An alarm is then wrong in 5 % of all runs at most, not of all looks.

Checks run in a thread of their own on a part of one core (`cpu`). Answers that land faster than that are passed over and
counted; the validation of their shard checks them all.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_assets.errors import GenerationError
from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Ask

BATCH = 32
BACKLOG = 512
"""Answers that may wait for their check; they are held in memory."""
SHOWN_ROWS, SHOWN_CHARACTERS = 5, 160
LOOKS_APART = 1.1


class ContentStop(GenerationError):
    """Answers break a hard rule; what was answered is kept."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One rule one answer fails."""

    rule: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What the rules say about one answer: the rules that apply to it, and those it fails."""

    applied: tuple[str, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class ContentRules:
    """Hard rules with a limit, ready to run."""

    check: Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], list[Checked]]
    """COMPLETION rows and the SHARD_PROMPT rows they answer to what the rules say, one for one."""
    limits: Mapping[str, float]
    """Rule to the largest share that may fail."""
    lower_bound: Callable[[int, int, float], float]
    """(failed, seen, confidence) to the lower end of the exact interval of the share."""
    confidence: float = 0.95


@dataclass(slots=True)
class _Count:
    seen: int = 0
    failed: int = 0
    looks: int = 0
    next_look: int = 1
    rows: list[tuple[Ask, Failure, str]] = field(default_factory=list[tuple[Ask, Failure, str]])
    """The first failing rows with the beginning of their text."""


class ContentWatch:
    """Checks answers in the background. `offer` is called by the window's thread; `alarm` is set once."""

    def __init__(
        self,
        rules: ContentRules,
        row_of: Callable[[Ask, Answer], Mapping[str, Any]],
        *,
        share: float = 1.0,
        cpu: float = 0.25,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rules, self._row_of, self._share, self._cpu, self._sleep = rules, row_of, share, cpu, sleep
        self._counts: dict[tuple[str, str], _Count] = {}
        self._waiting: deque[tuple[Ask, Answer]] = deque()
        self._there = threading.Condition()
        self._closed = False
        self.alarm: ContentStop | None = None
        self.checked = 0
        self.passed_over = 0
        """Answers that landed faster than the checks may run."""
        self.failure: BaseException | None = None
        """A defect of a rule ended the checks."""
        self._thread = threading.Thread(target=self._work, name="content", daemon=True)
        self._thread.start()

    def offer(self, ask: Ask, answer: Answer) -> None:
        """An answer is durable. Returns at once."""
        if ask.attempt_of_sample:
            return  # asked again because it failed: a choice of the worst rows says nothing about the run
        if self._share < 1.0 and int(ask.key[:8], 16) >= self._share * 2**32:
            return
        with self._there:
            if len(self._waiting) >= BACKLOG:
                self.passed_over += 1
                return
            self._waiting.append((ask, answer))
            self._there.notify()

    def close(self) -> None:
        """End the checks; what waits stays unchecked."""
        with self._there:
            self._closed = True
            self._there.notify()
        self._thread.join()

    def summary(self) -> dict[str, Any]:
        """What progress.json says: answers checked and passed over, failures by rule over the whole run."""
        failed = {rule: count.failed for (rule, stratum), count in self._counts.copy().items() if stratum == "run" and count.failed}
        return {"checked": self.checked, "passed_over": self.passed_over, "failed": failed}

    def _work(self) -> None:
        while True:
            with self._there:
                while not (self._waiting or self._closed):
                    self._there.wait()
                if self._closed:
                    return
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            began = time.thread_time()
            try:
                self.look(batch)
            except Exception as error:  # noqa: BLE001 - it is raised again in the window's thread
                self.failure = error
                return
            if self.alarm is not None:
                return
            # The event loop shares the interpreter: the checks stand back for as long as they would take too much of it.
            self._sleep((time.thread_time() - began) * (1.0 / self._cpu - 1.0))

    def look(self, batch: Sequence[tuple[Ask, Answer]]) -> None:
        """Check these answers and judge the counts."""
        found = self._rules.check([self._row_of(ask, answer) for ask, answer in batch], [prompt_of(ask) for ask, _ in batch])
        for (ask, answer), checked in zip(batch, found, strict=True):
            self.checked += 1
            failures = {failure.rule: failure for failure in checked.failures}
            for stratum in strata_of(ask):
                for rule in checked.applied:
                    count = self._counts.setdefault((rule, stratum), _Count())
                    count.seen += 1
                    if rule in failures:
                        count.failed += 1
                        if len(count.rows) < SHOWN_ROWS:
                            count.rows.append((ask, failures[rule], answer.text[:SHOWN_CHARACTERS]))
        for (rule, stratum), count in self._counts.items():
            if count.failed and count.seen >= count.next_look and self.alarm is None:
                self._judge(rule, stratum, count)

    def _judge(self, rule: str, stratum: str, count: _Count) -> None:
        count.looks += 1
        count.next_look = math.ceil(count.seen * LOOKS_APART) + 1
        limit = self._rules.limits[rule]
        if count.failed <= limit * count.seen:
            return
        error = (1.0 - self._rules.confidence) / (len(self._counts) * count.looks * (count.looks + 1))
        if self._rules.lower_bound(count.failed, count.seen, 1.0 - error) > limit:
            self.alarm = self._said(rule, stratum, count, limit)

    def _said(self, rule: str, stratum: str, count: _Count, limit: float) -> ContentStop:
        lower = self._rules.lower_bound(count.failed, count.seen, self._rules.confidence)
        where = "all answers" if stratum == "run" else f"answers of {stratum}"
        rows = "\n".join(
            f"  {ask.event_id} (prompt {ask.prompt_id}, {ask.source}): {failure.reason}: {failure.detail}\n    {text!r}"
            for ask, failure, text in count.rows
        )
        return ContentStop(
            f"{where} break the hard rule {rule}: {count.failed} of {count.seen} ({count.failed / count.seen:.1%}, at least {lower:.1%} "
            f"at {self._rules.confidence:.0%} confidence), limit {limit:.1%}; nothing more is asked\n{rows}",
            todo=f"mend what the rows show (sampling, template, prompts, or validation.rules.{rule}) and run again: every answer is kept; "
            "generation.early_stop.enabled: false goes on regardless",
        )


def strata_of(ask: Ask) -> Iterator[str]:
    """Names of the strata an answer counts for."""
    yield "run"
    yield f"source {ask.source}"
    yield f"category {ask.category}"
    yield "prompts with tools" if ask.tools_json is not None else "prompts without tools"
    yield "prompts with thinking" if ask.thinking else "prompts without thinking"


def prompt_of(ask: Ask) -> dict[str, Any]:
    """The SHARD_PROMPT row of an ask as far as it is known here: what rules about answers look at."""
    return {
        "prompt_id": ask.prompt_id,
        "source": ask.source,
        "source_row": "",
        "source_revision": "",
        "messages_json": ask.messages_json,
        "tools_json": ask.tools_json,
        "category": ask.category,
        "language": ask.language,
        "thinking": ask.thinking,
        "prompt_tokens": len(ask.prompt_ids),
        "flags": [],
        "prompt_ids": ask.prompt_ids,
        "shard": 0,
    }
