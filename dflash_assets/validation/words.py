"""A text as a sequence of numbers, for n-gram work: one number a word, or a code point where there are no words.

Here: that one conversion. Not here: what is done with the numbers (`rules/repetition.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_LONGEST_AVERAGE_WORD = 16
POINTS_A_WORD = 4


def words_or_points(text: str) -> tuple[npt.NDArray[np.uint64], int]:
    """`(values uint64[n], unit)`: word hashes with unit 1, or code points with unit 4 (four stand for a word).

    Code points are taken for texts whose "words" are very long on average: Chinese, Japanese, base64, minified code.
    """
    words = text.split()
    if len(words) * _LONGEST_AVERAGE_WORD >= len(text):
        return np.fromiter(map(hash, words), dtype=np.int64, count=len(words)).view(np.uint64), 1
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return points.astype(np.uint64), POINTS_A_WORD
