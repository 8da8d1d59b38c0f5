"""The hashes rows are ordered, matched and split by.

Here: order of the shuffle, key of a prompt's tokens, train or eval. Not here: what is done with them.

All are xxh3 over bytes, not for secrecy but for speed (about 0.3 us a row); they depend on content and seed only, so
that neither batch size, nor the number of buckets, nor the order of the input files changes the training set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

UInt64 = npt.NDArray[np.uint64]

_EVAL_SALT = 0x6576616C
"""Fixed, not the recipe's seed: another shuffle must not move prompts from train to eval."""


def order_keys(ids: Iterable[str], seed: int) -> UInt64:
    """Place of each row in the shuffle, uint64: sorting rows by it is a random permutation chosen by the seed."""
    seed &= 0xFFFFFFFFFFFFFFFF
    return np.fromiter((xxhash.xxh3_64_intdigest(id_.encode("utf-8", "surrogatepass"), seed) for id_ in ids), np.uint64)


def id_hashes(ids: Iterable[str]) -> UInt64:
    """64-bit hash of each id, independent of the order keys."""
    return order_keys(ids, 0x69647321)


def prompt_keys(prompts: Sequence[memoryview]) -> UInt64:
    """128-bit hash of each prompt's token bytes (little-endian int32), uint64 [rows, 2] as (high, low)."""
    joined = b"".join([xxhash.xxh3_128_digest(prompt) for prompt in prompts])
    return np.frombuffer(joined, ">u8").astype(np.uint64).reshape(-1, 2)


def prompt_key_text(keys: UInt64) -> list[str]:
    """The keys as 32 hex digits: the prompt_id of existing rows that have none of their own."""
    text = keys.astype(">u8").tobytes().hex()
    return [text[at : at + 32] for at in range(0, len(text), 32)]


def in_eval(prompt_ids: Iterable[str], share: float) -> npt.NDArray[np.bool_]:
    """Whether each prompt belongs to the eval split: by its own hash alone, so it stays there as the set grows."""
    hashes = order_keys(prompt_ids, _EVAL_SALT)
    # compared on the top 53 bits, which a float holds exactly; share 1.0 takes all
    return (hashes >> np.uint64(11)).astype(np.float64) < share * 2.0**53
