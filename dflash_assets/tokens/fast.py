"""Fast encoding behind an equality gate: fastokens where it gives the ids Hugging Face's tokenizers gives, that one elsewhere.

Here: deciding which of the two encodes, and watching the fast one. Not here: what is encoded (`tokenizer.py`, `turns.py`).

fastokens 0.3 encodes about 40 times faster (`benchmarks/tokenise.py`) and takes seconds to load, so a small run never loads it.
The reference encodes the run's first texts in any case: these, with a list of awkward ones, are the gate. After it the
reference goes on checking one text in `CHECK_ONE_IN`; a difference found then means that ids given before may be wrong, so it
is an error, on which `with_reference` starts the work again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from dflash_assets.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GATE_CHARACTERS = 4_000_000
"""Characters the reference encodes first, about two seconds of it; below this much text fastokens isn't worth its loading time."""
CHECK_ONE_IN = 1024
"""The reference takes about 5 % of the time so."""
SEGMENT_CACHE_BYTES = 32 << 20
"""Segments between control tokens are encoded once: turns of a conversation share all but their last."""
AWKWARD: tuple[str, ...] = (
    "",
    " ",
    "\n",
    "\n\n",
    " \n \n\n  x",
    "\r\n\r\n\tx\t\t",
    "assistant\n\n\nHello",
    "don't DON'T Don'T it's IT'S we'LL 'S 's",
    "12345678901234567890 1,234.56 ٣٤٥ ²³ Ⅷ",
    "e\u0301 \u00e9 \u1e9b\u0323 \u212b \ufb01",
    "हिन्दी தமிழ் ภาษาไทย ខ្មែរ",
    "עברית العربية\u200f\u200e",
    "漢字かな交じり文、한국어。全角ＡＢＣ１２３",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 👍🏽",
    "\u2028\u2029\u0085\u000b\u000c\u00a0\u3000\u200b\ufeff",
    "\x00\x01\x1b[0m\x7f\ufffd\ufffe",
    "\U000f0000\ue000\U0010ffff",
    "<|im_start|><|im_end|><|im_start|>user\n<|im_end|>\n",
    "<think></think> <think>\n\n</think>\n\n<tool_call>\n</tool_call>x<|endoftext|>",
    "<|im_end| ><|im_start <think",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!!????....,,,,----====____$$$$(((())))",
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": x**2}  # ok\n\n\nclass A: ...\n",
    "https://example.org/a?b=c&d=%20#e user@example.org",
)
"""Texts on which byte-pair encoders differ: normalisation, white space, combining marks, control tokens, digits, private code points."""

Ids = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Result = TypeVar("Result")


class TokenizersDisagree(TokenizerError):
    """The fast tokenizer gave other ids than the reference after the gate had been passed."""


class TextEncoder:
    """Encodes batches of text, control tokens recognised, nothing added; safe to use from several threads.

    `fast` false never loads fastokens. `note` says in words which tokenizer encodes, and why.
    """

    def __init__(self, reference: Tokenizer, *, fast: bool = True) -> None:
        self._reference = reference
        self._fast: Any = None
        self._lock = threading.Lock()
        self._gate: list[tuple[str, list[int]]] = []
        self._characters = 0
        self._open = fast
        self.note = "tokenizers; too little text so far to load fastokens" if fast else "tokenizers; fastokens is switched off"
        self.checked = 0
        """Texts both have encoded, alike."""

    def encode(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """Ids of all texts one after the other, int32, and where each begins, int64 [texts + 1]; both may be read-only.

        Raises TokenizersDisagree, see the module; UnicodeEncodeError when a text holds a lone surrogate.
        """
        if self._fast is None:
            return self._encode_by_reference(texts)
        ids, offsets = _flat(self._fast, texts)
        for place, text in enumerate(texts):
            found = ids[offsets[place] : offsets[place + 1]]
            if xxhash.xxh3_64_intdigest(found.data) % CHECK_ONE_IN == 0:  # chosen by content: the same texts on every run
                self._check(text, found)
        return ids, offsets

    def use_reference(self, why: str) -> None:
        """Encode with the reference from now on."""
        with self._lock:
            self._fast, self._open, self._gate = None, False, []
            self.note = f"tokenizers; fastokens isn't used: {why}"

    def _encode_by_reference(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        try:
            found = [encoding.ids for encoding in self._reference.encode_batch_fast(list(texts), add_special_tokens=False)]
        except TypeError:  # what tokenizers says of a text that UTF-8 can't hold
            for text in texts:
                text.encode()
            raise
        if self._open:
            with self._lock:
                self._collect(texts, found)
        offsets = np.zeros(len(found) + 1, np.int64)
        np.cumsum([len(ids) for ids in found], out=offsets[1:])
        joined = [np.array(ids, np.int32) for ids in found]
        return (np.concatenate(joined) if joined else np.empty(0, np.int32)), offsets

    def _collect(self, texts: Sequence[str], found: Sequence[list[int]]) -> None:
        """Keep what the gate will compare; open it once there is enough."""
        if not self._open:
            return
        self._gate += zip(texts, found, strict=True)
        self._characters += sum(map(len, texts))
        if self._characters >= GATE_CHARACTERS:
            gate, self._gate, self._open = self._gate, [], False
            self._fast = self._pass(gate)

    def _pass(self, gate: list[tuple[str, list[int]]]) -> Any:
        """The fast tokenizer if it agrees with the reference on the gate's texts, else None with a note."""
        try:
            import fastokens
        except ImportError:
            self.note = "tokenizers; fastokens isn't installed"
            return None
        gate = [*gate, *((text, self._reference.encode(text, add_special_tokens=False).ids) for text in AWKWARD)]
        try:
            fast = fastokens.Tokenizer.from_json_str(self._reference.to_str())
            fast.enable_segment_cache(SEGMENT_CACHE_BYTES)
            ids, offsets = _flat(fast, [text for text, _ in gate])
        except (ValueError, RuntimeError, NotImplementedError) as error:  # a kind of tokenizer it doesn't know
            self.note = f"tokenizers; fastokens can't be used: {error}"
            return None
        for place, (text, wanted) in enumerate(gate):
            if ids[offsets[place] : offsets[place + 1]].tolist() != wanted:
                self.note = f"tokenizers; fastokens gives other ids for {_shown(text)}"
                return None
        self.checked = len(gate)
        self.note = f"fastokens; equal to tokenizers on {len(gate)} texts of this run, and one text in {CHECK_ONE_IN} is still compared"
        return fast

    def _check(self, text: str, ids: Ids) -> None:
        [wanted] = self._reference.encode_batch_fast([text], add_special_tokens=False)  # without offsets, which nobody asks for
        if wanted.ids != ids.tolist():
            raise TokenizersDisagree(
                f"fastokens gives other ids than tokenizers for {_shown(text)}", todo="set target_model.fast_tokenizer to false"
            )
        self.checked += 1


def with_reference(encoder: TextEncoder, work: Callable[[], Result]) -> Result:
    """The result of `work`, which encodes with `encoder`; should the two tokenizers disagree on the way, of doing it again with the reference."""
    try:
        return work()
    except TokenizersDisagree as error:
        encoder.use_reference(error.what)
        return work()


def _flat(fast: Any, texts: Sequence[str]) -> tuple[Ids, Offsets]:
    ids, offsets = fast.encode_batch_flat(list(texts), add_special_tokens=False)
    # Ids and offsets are far below the sign bit, so the buffers serve as they are.
    return np.frombuffer(ids, "<i4"), np.frombuffer(offsets, "<i8")


def _shown(text: str) -> str:
    return repr(text[:80]) + ("" if len(text) <= 80 else f" ... ({len(text)} characters)")
