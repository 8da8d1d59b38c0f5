"""Tokenizer and chat template out of the metadata of a GGUF file.

Here: building a byte-level BPE tokenizer from it. Not here: reading the file (`dflash_assets.resources.gguf_metadata`), weights
(`dflash_assets.resources.weights`) and what is done with a tokenizer (`tokenizer.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_assets.errors import TokenizerError
from dflash_assets.resources.gguf_metadata import GgufError, read_metadata

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# tokenizer.ggml.token_type: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
_CONTROL, _USER_DEFINED = 3, 4

# The patterns stand in transformers' models/qwen2 and models/qwen3_5 tokenizers; qwen35 differs by \p{M} (combining marks).
_QWEN2_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {"qwen2": _QWEN2_PATTERN, "qwen35": _QWEN35_PATTERN}
PRE_TOKENIZERS = ("smollm", *_PATTERNS)
"""Values of `tokenizer.ggml.pre` that can be rebuilt exactly."""


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """What a GGUF file says about text."""

    tokenizer: Tokenizer
    chat_template: str
    special_names: dict[str, str]
    """Role (`eos_token`, `bos_token`, `pad_token`, `unk_token`) -> token text."""


def load_gguf_tokenizer(path: Path) -> GgufTokenizer:
    """Byte-level BPE tokenizer, chat template and special tokens of a GGUF file.

    Raises TokenizerError when the file holds another kind of tokenizer, a pre-tokenizer that isn't one of
    PRE_TOKENIZERS (a guess would give other ids than the model was trained with), or no chat template.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    try:
        metadata = read_metadata(path)
    except GgufError as error:
        raise TokenizerError(str(error), where=str(path), todo="fetch the file again") from error

    def need(key: str) -> Any:
        if key not in metadata:
            raise TokenizerError(f"the metadata has no {key}", where=str(path), todo="name a tokenizer folder with `tokenizer: dir:PATH`")
        return metadata[key]

    model, pre = need("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if model != "gpt2" or pre not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"tokenizer {model!r} with pre-tokenizer {pre!r} can't be rebuilt exactly (known: gpt2 with {', '.join(PRE_TOKENIZERS)})",
            where=str(path),
            todo="name a tokenizer folder with `tokenizer: dir:PATH`",
        )
    tokens: list[str] = need("tokenizer.ggml.tokens")
    types: list[int] = need("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in need("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(types) != len(tokens):
        raise TokenizerError("the vocabulary holds a token twice or lacks token types", where=str(path))

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))  # pyright: ignore[reportArgumentType]
    if pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PATTERNS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [AddedToken(token, special=special, normalized=False) for token, of in zip(tokens, types, strict=True) if of == kind]
        if special:
            tokenizer.add_special_tokens(added)
        else:
            tokenizer.add_tokens(added)

    keys = {"eos_token": "eos_token_id", "bos_token": "bos_token_id", "pad_token": "padding_token_id", "unk_token": "unknown_token_id"}
    names = {role: tokens[metadata[f"tokenizer.ggml.{key}"]] for role, key in keys.items() if f"tokenizer.ggml.{key}" in metadata}
    return GgufTokenizer(tokenizer, need("tokenizer.chat_template"), names)
