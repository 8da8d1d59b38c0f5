"""Token frequencies and the maps between the target's vocabulary and a smaller draft vocabulary.

Here: counting supervised ids, choosing the draft vocabulary, the file forms trainers read. Not here: the rows.

Forms: speculators `d2t.npy` int64 [draft] (target id - draft id) and `t2d.npy` bool [target], `token_freq.pt`
dict[int, int]; SpecForge `vocab_mapping.pt` {d2t, t2d}; NeMo Automodel {selected_token_ids, target_vocab_size}.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_assets.tables import canonical_json, write_text

Counts = npt.NDArray[np.int64]


def draft_vocabulary(counts: Counts, size: int) -> Counts:
    """The `size` most frequent ids, ascending, int64 [size]; ties and unused places go to the smallest ids."""
    order = np.argsort(-counts, kind="stable")[:size]
    return np.sort(order).astype(np.int64)


def write_vocabulary(folder: Path, counts: Counts, draft_size: int | None) -> list[str]:
    """Write frequencies (supervised occurrences of each id) and, for a draft size, the maps; returns notes.

    `counts` int64 [target vocabulary]. The `.pt` forms need torch, which is no dependency of ours: without it a note says
    that they weren't written.
    """
    frequencies = {str(index): int(counts[index]) for index in np.flatnonzero(counts)}
    write_text(folder / "token_freq.json", canonical_json(frequencies) + "\n")
    names = ["token_freq.pt"]
    selected: Counts | None = None
    if draft_size is not None:
        selected = draft_vocabulary(counts, draft_size)
        np.save(folder / "d2t.npy", selected - np.arange(len(selected)))
        np.save(folder / "t2d.npy", _membership(selected, len(counts)))
        covered = int(counts[selected].sum()) / max(1, int(counts.sum()))
        write_text(
            folder / "vocab_mapping.json",
            canonical_json(
                {
                    "draft_vocab_size": len(selected),
                    "target_vocab_size": len(counts),
                    "selected_token_ids": selected.tolist(),
                    "d2t": (selected - np.arange(len(selected))).tolist(),
                    "supervised_share_covered": round(covered, 6),
                }
            )
            + "\n",
        )
        names.append("vocab_mapping.pt")
    if importlib.util.find_spec("torch") is None:
        return [f"{name}: not written (torch is not installed); its content is in {name.replace('.pt', '.json')}" for name in names]
    _write_torch(folder, counts, selected)
    return []


def _membership(selected: Counts, target: int) -> npt.NDArray[np.bool_]:
    member = np.zeros(target, np.bool_)
    member[selected] = True
    return member


def _write_torch(folder: Path, counts: Counts, selected: Counts | None) -> None:
    torch: Any = importlib.import_module("torch")
    torch.save({int(index): int(counts[index]) for index in np.flatnonzero(counts)}, folder / "token_freq.pt")
    if selected is not None:
        maps = {"d2t": selected - np.arange(len(selected)), "t2d": _membership(selected, len(counts))}
        torch.save({name: torch.from_numpy(value) for name, value in maps.items()}, folder / "vocab_mapping.pt")
