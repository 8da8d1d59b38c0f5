"""Replayed conversations in a run: the ask of the next turn, once a turn is answered.

Here: from a durable answer to the next ask of its sample, and as far as answers are known already, along the whole conversation. Not
here: what the next turn is asked with (`dflash_assets.replay`), sending (`window`).

A conversation is a chain of asks with keys like any other: the key hashes the prompt's ids, and those hold the answers before it. So a
resumed run finds every turn again from the answers alone, and after a crash between two turns asks exactly the turn that is
missing. Each sample is a chain of its own. When a turn is asked again (`redrive`), all later turns of its sample have another history
and are asked again as well; the same answer by chance gives the same keys, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from dflash_assets.generation.record import Answer
from dflash_assets.generation.requests import Again, Ask, Continuation, KeyFacts, OpenShard, Sample, make_ask
from dflash_assets.replay.following import NextTurn, Replay


@dataclass(frozen=True, slots=True)
class Chains:
    """Makes the asks of later turns of one shard. `again` holds the samples of turns that aren't asked for the first time."""

    replay: Callable[[], Replay]
    """Only called when a replayed conversation goes on: it may load a tokenizer."""
    facts: KeyFacts
    again: Mapping[Sample, Again]
    continuation: Continuation | None

    def after(self, ask: Ask, answer: Answer) -> Ask | str:
        """The next turn's ask, or the state the conversation ends in. Renders a prompt: call it outside the event loop."""
        assert ask.recorded_json is not None
        found = self.replay().after(
            orjson.loads(ask.recorded_json),
            ask.turn,
            orjson.loads(ask.messages_json),
            answer.text,
            answer.outcome,
            tools_json=ask.tools_json,
            thinking=ask.thinking,
        )
        if not isinstance(found, NextTurn):
            return found
        row = {name: getattr(ask, name) for name in ("prompt_id", "source", "tools_json", "thinking", "category", "language")}
        turn = ask.turn + 1
        return make_ask(
            row,
            tuple(found.prompt_ids),
            turn,
            ask.sample,
            self.facts,
            self.again.get((ask.prompt_id, turn, ask.sample)),
            self.continuation,
            messages_json=orjson.dumps(found.messages).decode(),
            recorded_json=ask.recorded_json,
            turns_left=ask.turns_left - 1,
        )


def catch_up(opened: OpenShard, asks: Sequence[Ask], find: Callable[[Sequence[Ask]], None]) -> None:
    """Follow conversations along the answers that are known. `find` is given new asks and adds what it knows to the shard's answers."""
    known = [ask for ask in asks if ask.recorded_json is not None and ask.key in opened.answers]
    while known:
        reached = [following for ask in known if (following := opened.advance(ask)) is not None]
        find(reached)
        known = [ask for ask in reached if ask.key in opened.answers]


def in_order(asks: Sequence[Ask]) -> list[Ask]:
    """Asks of a shard as its file has them: prompts in their order, samples of a prompt, turns of a sample."""
    if not any(ask.turn for ask in asks):
        return list(asks)
    places: dict[str, int] = {}
    for ask in asks:
        places.setdefault(ask.prompt_id, len(places))
    return sorted(asks, key=lambda ask: (places[ask.prompt_id], ask.sample, ask.turn))
