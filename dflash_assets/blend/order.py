"""Choices by hash: which prompts a quota takes, in which order they stand, which are answered with thinking.

Here: three independent hashes of (seed, prompt id). Not here: quotas. A choice depends on seed and prompt only, never
on position: adding a source or a row moves no other prompt's choice.
"""

from __future__ import annotations

from typing import Literal

import xxhash

Purpose = Literal["take", "shuffle", "thinking"]
_SPACE = 1 << 64


def place(prompt_id: str, seed: int, purpose: Purpose) -> int:
    """Uniform 64-bit place of a prompt. `take` and `shuffle` differ, else a source taken in part would stand in front."""
    return xxhash.xxh3_64_intdigest(f"{purpose}:{seed}:{prompt_id}".encode())


def thinks(prompt_id: str, seed: int, share: float) -> bool:
    """True for a `share` of all prompts; a larger share keeps every prompt of a smaller one."""
    return place(prompt_id, seed, "thinking") < share * _SPACE
