"""At most so many different prompts from one original question.

Here: the cap that rephrasing sets need (MetaMathQA, WebInstructSub). Not here: duplicates, which are the blend's: a
repeated prompt passes uncounted, so that copies never use up a group.
"""

from __future__ import annotations

import xxhash

from dflash_assets.sources.records import RowFault


class GroupCap:
    """Counts different prompts for each group, by 64-bit hashes; memory grows with groups x cap."""

    def __init__(self, cap: int | None) -> None:
        self.cap = cap
        self._seen: dict[int, list[int]] = {}

    def check(self, group: object, prompt: str) -> None:
        """Let a prompt of a group through, or raise RowFault group_cap. A blank or missing group is no group."""
        if self.cap is None or not isinstance(group, str) or not group.strip():
            return
        seen = self._seen.setdefault(xxhash.xxh3_64_intdigest(" ".join(group.split()).encode()), [])
        prompt_hash = xxhash.xxh3_64_intdigest(prompt.encode())
        if prompt_hash in seen:
            return
        if len(seen) >= self.cap:
            raise RowFault("group_cap", f"the source's cap of {self.cap} prompts from one original question is reached")
        seen.append(prompt_hash)
