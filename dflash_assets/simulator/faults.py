"""Faults on demand: which request meets which fault, by share or by name.

Here: the kinds, the draw, the counts. Not here: what a fault does to a reply (`server.py`), answers gone wrong (`answers.py`), scripted
replies (`script.py`), a server that dies (`life.py`).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KINDS: Mapping[str, str] = {
    "status": "replies with this status and SGLang's error body, e.g. status:503 (also 429, 500, 400 ...)",
    "html": "replies 200 with an HTML page, as a proxy does",
    "error_body": "replies 200 with an error object",
    "stale": "resets a kept-alive connection as the request arrives; requests on new connections are spared",
    "reset": "resets the connection within the reply's body",
    "latency": "takes so many seconds longer, e.g. latency:2.5",
    "hang": "holds its slot and never replies",
    "forgotten": "takes the request, counts it nowhere and never replies",
    "ghost": "goes on in its slot although its client has gone",
    "abort": "ends half way: 200, finish_reason abort, what was made so far",
    "nan": "ends half way: 200, finish_reason stop, matched 'NaN happened'",
    "wrong_id": "one of the ids lies beyond the vocabulary",
    "truncated_text": "half of the text is missing, the ids are whole",
    "loop": "repeats a sentence until the limit",
    "open_thought": "stops without closing its thought (prompts that think)",
    "malformed_call": "calls a tool in a broken form (prompts that offer tools)",
    "empty": "says nothing but the end token",
}
"""Kinds of faults and what each does."""
_VALUES = {"status": 503.0, "latency": 1.0}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `value` is the status or the seconds."""

    kind: str
    value: float = 0.0


def parse_fault(text: str) -> Fault:
    """`KIND` or `KIND:VALUE`. Raises ValueError that names the kinds."""
    kind, _, value = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"no fault is called {kind!r}; there are {', '.join(KINDS)}")
    if value and kind not in _VALUES:
        raise ValueError(f"{kind} takes no value, {text!r} has one")
    try:
        return Fault(kind, float(value) if value else _VALUES.get(kind, 0.0))
    except ValueError:
        raise ValueError(f"{value!r} in {text!r} is no number") from None


class Faults:
    """Which fault the next generation request meets: the queued ones first, then each kind with its share."""

    def __init__(self, shares: Mapping[str, float] | None = None, seed: int = 0) -> None:
        self._source = random.Random(seed)
        self._queue: deque[Fault] = deque()
        self._shares: list[tuple[float, Fault]] = []
        self.counts: Counter[str] = Counter()
        """Faults met, by kind."""
        self.set_shares(shares or {})

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """Replace all shares: fault (`KIND` or `KIND:VALUE`) to share of the requests. Raises ValueError above 1 in all."""
        cumulated, total = [], 0.0
        for text, share in shares.items():
            fault = parse_fault(text)
            if not 0 <= share <= 1:
                raise ValueError(f"the share of {text} is {share}, not between 0 and 1")
            total += share
            cumulated.append((total, fault))
        if total > 1:
            raise ValueError(f"the shares of all faults are {total:g} together")
        self._shares = cumulated

    def queue(self, faults: Iterable[str]) -> None:
        """The next requests meet these, one each. Raises ValueError."""
        self._queue.extend([parse_fault(text) for text in faults])

    def draw(self, *, reused: bool) -> Fault | None:
        """The fault of a request that came over a `reused` connection, or None."""
        fault = self._queue.popleft() if self._queue else self._by_share()
        if fault is None or (fault.kind == "stale" and not reused):
            return None
        self.counts[fault.kind] += 1
        return fault

    def place(self) -> float:
        """How far into its work something happens: a share between 0.1 and 0.9."""
        return self._source.uniform(0.1, 0.9)

    def _by_share(self) -> Fault | None:
        if not self._shares:
            return None
        drawn = self._source.random()
        return next((fault for limit, fault in self._shares if drawn < limit), None)
