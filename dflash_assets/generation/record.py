"""One remembered answer: its fields, and the bytes of its record.

Here: what is known of an answer when its request is over, and the payload `<u32 length of header><header JSON><output ids as int32>`,
little endian. Not here: how payloads are framed, checked and kept (`journal`), and what an answer is worth (`outcomes`).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, cast

import numpy as np
import orjson

_INNER = struct.Struct("<I")
_LITTLE_ENDIAN = sys.byteorder == "little"
LEAST_BYTES = _INNER.size
"""A payload is never shorter."""


@dataclass(slots=True)
class Answer:
    """The terminal result of one ask, as remembered: everything of a COMPLETION row that the ask doesn't know.

    Never changed once made. Not frozen: setting the fields of a frozen class costs as much as all the rest of its making.
    """

    key: str
    outcome: str
    text: str
    output_ids: Sequence[int] = field(repr=False)
    """int32; kept as an array of 4 bytes an id, since answers of all open shards are in memory (as Python integers: 36)."""
    finish_reason: str
    matched_stop: str | None
    detail: str | None
    attempts: int
    ids_exact: bool
    engine: str
    engine_version: str
    model_revision: str
    server: str
    started_at: int
    """Microseconds since 1970, UTC."""
    seconds: float

    def __post_init__(self) -> None:
        if not isinstance(self.output_ids, array):
            self.output_ids = array("i", self.output_ids)

    def encode(self) -> bytes:
        """Payload of the answer's record."""
        # Not `asdict`: it copies the ids one by one, which costs more than all the rest of a request.
        header: dict[str, Any] = dict(zip(_HEADER_FIELDS, _HEADER_VALUES(self), strict=True))
        header["surrogates"] = False
        try:
            data = orjson.dumps(header)
        except orjson.JSONEncodeError:
            # An engine may give lone surrogates, which are no UTF-8; they must come back as they were.
            header["surrogates"] = True
            header["text"] = self.text.encode("utf-8", "surrogatepass").decode("latin-1")
            data = orjson.dumps(header)
        ids = cast("array[int]", self.output_ids)
        return b"".join((_INNER.pack(len(data)), data, ids if _LITTLE_ENDIAN else np.asarray(ids, dtype="<i4").tobytes()))

    @staticmethod
    def decode(payload: bytes) -> Answer:
        """Answer of a record's payload."""
        (length,) = _INNER.unpack_from(payload)
        header: dict[str, Any] = orjson.loads(payload[_INNER.size : _INNER.size + length])
        if header.pop("surrogates"):
            header["text"] = header["text"].encode("latin-1").decode("utf-8", "surrogatepass")
        ids = array("i")
        ids.frombytes(np.frombuffer(payload, dtype="<i4", offset=_INNER.size + length).astype("=i4").tobytes())
        return Answer(output_ids=ids, **header)


_HEADER_FIELDS = tuple(item.name for item in fields(Answer) if item.name != "output_ids")
_HEADER_VALUES = attrgetter(*_HEADER_FIELDS)


def key_of(payload: bytes) -> str:
    """Request key of a record, without its text and ids."""
    (header,) = _INNER.unpack_from(payload)
    return orjson.loads(payload[_INNER.size : _INNER.size + header])["key"]
