"""Reader `wildclaw`: a proxy's log of request *and* response records, as in wildclaw-opus-traces.

Here: pairing requests with their responses, retries, sessions whose requests contain each other. Not here: the bodies
(`http`). Two passes over the records: the first keeps hashes only, so memory grows with messages, not with texts.
Sessions are compared without their system text, which all requests of a log share and which may hold the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import xxhash

from dflash_assets.sources.http import request_draft
from dflash_assets.sources.literals import NotPlain, parse_json
from dflash_assets.sources.normalise import ROLES
from dflash_assets.sources.reader import ReaderOptions
from dflash_assets.sources.records import Draft, RawRecord, Reading, Records, RowFault
from dflash_assets.tables import canonical_json

_WRAPPERS = ("text", "content", "data")


class WildClawOptions(ReaderOptions):
    """Which requests of a session become prompts."""

    sessions: Literal["longest", "every_step"] = "longest"
    """`longest`: a request that another one of its task continues is dropped (`superseded_by_longer`); `every_step` keeps them all."""
    unanswered: Literal["keep", "drop"] = "keep"
    """Requests whose response was not recorded at all; those with a response other than 200 are always dropped."""


class WildClawReader:
    """Request records become prompts; response records tell which requests succeeded."""

    options_model = WildClawOptions

    def __init__(self, options: WildClawOptions) -> None:
        self.options = options

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields of a record."""
        return ("type", "request_id", "body")

    def read(self, records: Records) -> Iterator[Reading]:
        """One reading for each record, in order."""
        statuses: dict[str, set[int]] = {}
        requests: list[tuple[str, list[bytes]]] = []
        for record in records:
            value = _unwrapped(record)
            if isinstance(value, RowFault):
                continue
            if value.get("type") == "response":
                statuses.setdefault(str(value.get("request_id")), set()).add(_status(value))
            elif isinstance(draft := _draft(value), Draft):
                requests.append((str(value.get("request_id")), _states(value, draft)[:-1]))
        # States that some longer request went through. Responses stand after their requests, so this has to wait for all of them.
        interior = {state for identity, states in requests if self._refused(identity, statuses) is None for state in states}
        ends: set[bytes] = set()
        for record in records:
            yield record, self._reading(record, statuses, interior, ends)

    def _reading(self, record: RawRecord, statuses: dict[str, set[int]], interior: set[bytes], ends: set[bytes]) -> Draft | RowFault:
        value = _unwrapped(record)
        if isinstance(value, RowFault):
            return value
        if value.get("type") == "response":
            return RowFault("response_record", "a response; its request is a row of its own")
        if value.get("type") != "request":
            return RowFault("schema_mismatch", f"type is {str(value.get('type'))[:40]!r}, neither request nor response")
        draft = _draft(value)
        if isinstance(draft, RowFault):
            return draft
        fault = self._refused(str(value.get("request_id")), statuses)
        if fault is not None:
            return fault
        if str(value.get("request_id")) not in statuses:
            draft.flags.add("response_not_recorded")
        states = _states(value, draft)
        if states and states[-1] in ends:
            return RowFault("retry_duplicate", "the same request of the same task stands earlier in the log")
        if states and self.options.sessions == "longest" and states[-1] in interior:
            return RowFault("superseded_by_longer", "a later request of the same task contains this one")
        ends.update(states[-1:])
        return draft

    def _refused(self, request_id: str, statuses: dict[str, set[int]]) -> RowFault | None:
        found = statuses.get(request_id)
        if found is None:
            return RowFault("response_missing", "no response was recorded") if self.options.unanswered == "drop" else None
        if 200 not in found:
            return RowFault("response_not_ok", f"the response had status {', '.join(map(str, sorted(found)))}")
        return None


def _unwrapped(record: RawRecord) -> dict[str, Any] | RowFault:
    if record.fault is not None:
        return record.fault
    value = record.value
    if "type" not in value:
        wrapper = next((name for name in _WRAPPERS if isinstance(value.get(name), str)), None)
        if wrapper is None:
            return RowFault("schema_mismatch", f"no column 'type'; the row has {', '.join(sorted(value)) or 'none'}")
        try:
            inner, _ = parse_json(value[wrapper])
        except NotPlain as error:
            return RowFault("json_decode_error", f"column {wrapper!r}: {error}")
        if not isinstance(inner, dict):
            return RowFault("schema_mismatch", f"column {wrapper!r} holds no object")
        return inner
    return value


def _draft(value: dict[str, Any]) -> Draft | RowFault:
    try:
        return request_draft(value)
    except RowFault as fault:
        return fault


def _status(value: dict[str, Any]) -> int:
    status = value.get("status_code")
    return status if isinstance(status, int) else 0


def _states(value: dict[str, Any], draft: Draft) -> list[bytes]:
    """A hash for each prefix of the messages, system text left out: equal states mean equal conversations of one task."""
    metadata = value.get("task_metadata")
    task = value.get("task_name") or (metadata.get("task_id") if isinstance(metadata, dict) else None)
    state = xxhash.xxh3_128_digest(str(task).encode())
    states: list[bytes] = []
    for message in draft.messages:
        if isinstance(message, dict) and ROLES.get(str(message.get("role"))) == "system":
            continue
        state = xxhash.xxh3_128_digest(state + canonical_json(message).encode("utf-8", "surrogatepass"))
        states.append(state)
    return states
