"""Routes under `/simulator/` that no SGLang has: what the server saw, and faults for it.

Here: reading and changing a running simulator. Not here: what the changes do.

    GET  /simulator/state    counts of requests, answers, tokens and faults; CPU seconds of the process
    GET  /simulator/spans    [[start, end], ...] of the answers, monotonic seconds; needs `record`
    POST /simulator/faults   {"shares": {"reset": 0.01, "status:503": 0.01}, "next": ["hang"], "keep_alive_seconds": 1, "health_seconds": 30}
    POST /simulator/die      {"seconds": 5} from now, null for good; {"after_answers": 1000, "seconds": null}
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dflash_assets.simulator.http import Exchange

if TYPE_CHECKING:
    from dflash_assets.simulator.server import SimulatedServer

PREFIX = "/simulator/"


class BadOrder(Exception):
    """An order that can't be followed; the message says why."""


def answer(server: SimulatedServer, exchange: Exchange, body: Any) -> dict[str, Any]:
    """Body of the reply to a request for an admin route. Raises BadOrder."""
    match exchange.method, exchange.path.removeprefix(PREFIX):
        case "GET", "state":
            return state(server)
        case "GET", "spans":
            return {"spans": [list(span) for span in server.spans]}
        case "POST", "faults":
            return _faults(server, body)
        case "POST", "die":
            return _die(server, body)
        case _:
            raise BadOrder("there are GET state, GET spans, POST faults and POST die")


def state(server: SimulatedServer) -> dict[str, Any]:
    """What the server has seen so far."""
    return {
        "requests": dict(server.counts),
        "answers": server.answers,
        "finished": dict(server.finished),
        "output_tokens": server.output_tokens,
        "faults": dict(server.faults.counts),
        "lost_clients": server.lost_clients,
        "deaths": server.life.deaths if server.life else 0,
        "running": server.slots.running,
        "waiting": server.slots.waiting,
        "cpu_seconds": time.process_time(),
    }


def _faults(server: SimulatedServer, body: Any) -> dict[str, Any]:
    known = {"shares", "next", "keep_alive_seconds", "health_seconds"}
    if not isinstance(body, dict) or not body.keys() <= known:
        raise BadOrder(f"an object with some of {', '.join(sorted(known))} is wanted")
    try:
        if "shares" in body:
            server.faults.set_shares(body["shares"])
        server.faults.queue(body.get("next", ()))
        if "health_seconds" in body:
            server.health_seconds = float(body["health_seconds"])
        if "keep_alive_seconds" in body and server.life is not None:
            server.life.keep_alive_seconds = float(body["keep_alive_seconds"])
    except (ValueError, TypeError, AttributeError) as error:
        raise BadOrder(str(error)) from None
    return state(server)


def _die(server: SimulatedServer, body: Any) -> dict[str, Any]:
    if server.life is None or not isinstance(body, dict) or not body.keys() <= {"seconds", "after_answers"}:
        raise BadOrder("an object with some of seconds, after_answers is wanted")
    server.die_after(body.get("after_answers", 0), body.get("seconds"))
    return state(server)
