"""The target model's tokenizer: exact prompt ids, and text out of ids.

Here: `TargetTokenizer`, what the rest of the product asks for tokens. Not here: where its files come from (`load.py`), the template
environment (`template.py`), loss masks (`mask.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from dflash_assets.tables import canonical_json, digest
from dflash_assets.tokens.decode import decoder_of
from dflash_assets.tokens.fast import Ids, Offsets, TextEncoder
from dflash_assets.tokens.messages import ControlTokens, normalise_messages, restore
from dflash_assets.tokens.template import ChatTemplate, Message, TemplateFault

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ASSISTANT = "<|im_start|>assistant\n"
_TURN_MARKERS = ("<|im_start|>", "<|im_end|>")
# Ends an answer of every ChatML model, whatever its config names as eos (Qwen lists both in generation_config.json).
_ALWAYS_STOP = ("<|im_end|>", "<|endoftext|>")
Tools = Sequence[Mapping[str, Any]] | None


class Conversation(NamedTuple):
    """What a prompt is rendered from."""

    messages: Sequence[Message]
    tools: Tools
    thinking: bool


class TargetTokenizer:
    """Tokenizer and chat template of the target model.

    `tokenizer` is a byte-level BPE `tokenizers.Tokenizer`; `stop_token_ids` what the model's own files name as end tokens;
    `fast` lets batches be encoded by fastokens where it is equal (`fast.py`).
    Safe to use from several threads. Ids are Python ints below `vocab_size`.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, stop_token_ids: Iterable[int] = (), *, fast: bool = True) -> None:
        self._tokenizer = tokenizer
        self.encoder = TextEncoder(tokenizer, fast=fast)
        """What encodes batches."""
        self.template = template
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids: dict[str, int] = {token.content: index for index, token in sorted(added.items())}
        """Added tokens, special or not, that encode to one id: text -> id (`<|im_end|>`, `<think>`, `<tool_call>` ...)."""
        self._control = ControlTokens(token.content for token in added.values() if token.special)
        always = (self.special_ids[name] for name in _ALWAYS_STOP if name in self.special_ids)
        self.stop_token_ids: tuple[int, ...] = tuple(sorted({*stop_token_ids, *always}))
        """Ids that end an answer."""
        self.turn_marker_ids: tuple[int, ...] = tuple(self.special_ids[name] for name in _TURN_MARKERS if name in self.special_ids)
        """Ids of `<|im_start|>` and `<|im_end|>`, in this order, as far as the model has them."""
        start = next((token for token in added.values() if token.content == _TURN_MARKERS[0]), None)
        self.turns_are_borders = start is not None and start.special and not (start.lstrip or start.normalized or start.single_word)
        """True when text from a `<|im_start|>` on has the same ids alone and behind other text."""

    @cached_property
    def vocab_size(self) -> int:
        """Highest id + 1. The model's embedding may be larger (padding), but no valid id is beyond this."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def sha(self) -> str:
        """Fingerprint (32 hex digits) of all that decides ids: vocabulary, merges, added tokens, normaliser, pre-tokenizer.

        Equal for equal content whatever the file it came from (tokenizer.json or GGUF): offsets, templates,
        decoders and post-processors don't enter it.
        """
        state = orjson.loads(self._tokenizer.to_str())
        model = state["model"]
        merges = "\n".join([merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", ())])
        added = sorted((token["id"], token["content"], token["special"]) for token in state["added_tokens"])
        return digest(
            canonical_json({**model["vocab"], **{content: index for index, content, _ in added}}),
            merges,
            canonical_json(added),
            canonical_json(_without_offsets(state["normalizer"])),
            canonical_json(_without_offsets(state["pre_tokenizer"])),
            canonical_json(bool(model.get("ignore_merges"))),
        )

    @property
    def template_sha(self) -> str:
        """Fingerprint of the chat template and its fixed variables."""
        return self.template.sha

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Tools, thinking: bool, *, add_generation_prompt: bool = True) -> str:
        """Text of a conversation, messages normalised first. Raises TemplateFault.

        For people and for comparing with servers. Never encode it: control tokens typed in a message look like real
        ones here; `encode_prompt` keeps them apart.
        """
        return self.template.render(normalise_messages(messages), tools, thinking, add_generation_prompt=add_generation_prompt)

    def encode(self, text: str) -> list[int]:
        """Ids of text in which control tokens are meant (an engine's raw output). Nothing is added.

        Raises TemplateFault (`not_unicode`) for lone surrogates.
        """
        _check_unicode(text)
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of text as `encode` gives them, and for each the characters [start, end) it covers, white space included.

        Tokens that share a character (a cut emoji) share its offsets. Raises TemplateFault (`not_unicode`).
        """
        _check_unicode(text)
        encoding = self._offset_tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def holds_control_tokens(self, value: Any) -> bool:
        """True when a control token (`<|im_end|>` ...) stands in any string of messages or tools."""
        return self._control.occur_in(value)

    def decode(self, ids: Sequence[int]) -> str:
        """Exact text of ids, special tokens kept; a byte sequence cut within a character gives U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    @cached_property
    def fast_decode(self) -> Callable[[Sequence[int]], str]:
        """`decode` from a table of the vocabulary's bytes: the same text, about 10 times faster (`decode.py`)."""
        return decoder_of(self._tokenizer)

    def encode_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools, thinking: bool, *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Ids of a rendered conversation, generation prompt included. Raises TemplateFault."""
        [result] = self.encode_prompts(
            [Conversation([dict(m) for m in messages], tools, thinking)], add_generation_prompt=add_generation_prompt
        )
        if isinstance(result, TemplateFault):
            raise result
        return result

    def encode_prompts(
        self, conversations: Sequence[Conversation], *, add_generation_prompt: bool = True
    ) -> list[list[int] | TemplateFault]:
        """Ids of many conversations, or for each one the fault that makes it no prompt; encoded in parallel."""
        results: list[list[int] | TemplateFault] = [[] for _ in conversations]
        texts: list[str] = []
        places: list[int] = []
        for place, conversation in enumerate(conversations):
            try:
                text = self._plain_render(conversation, add_generation_prompt)
                if text is None:
                    results[place] = self._encode_guarded(conversation, add_generation_prompt)
                else:
                    texts.append(text)
                    places.append(place)
            except TemplateFault as fault:
                results[place] = fault
        ids, offsets = self.encoder.encode(texts)
        for place, start, end in zip(places, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            results[place] = ids[start:end].tolist()
        return results

    def encode_texts(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """`encode` for many: all ids one after the other, int32, and where each text begins, int64 [texts + 1].

        Raises TemplateFault (`not_unicode`) for lone surrogates.
        """
        for text in texts:
            _check_unicode(text)
        return self.encoder.encode(texts)

    def encode_lists(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode_texts` as a list for each text."""
        ids, offsets = self.encode_texts(texts)
        return [ids[start:end].tolist() for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]

    @property
    def end_of_turn_id(self) -> int | None:
        """Id that ends an assistant turn: `<|im_end|>`, else the first stop id there is."""
        return self.special_ids.get("<|im_end|>", self.stop_token_ids[0] if self.stop_token_ids else None)

    def answer_text(self, messages: Sequence[Mapping[str, Any]], tools: Tools, thinking: bool, answer: Mapping[str, Any]) -> str:
        """Text a model must have generated for a structured answer (`reasoning_content`, `content`, `tool_calls`), without its end token.

        What the template prints for it after the generation prompt. For answers that come taken apart by a server: white space and
        the spelling of arguments are the template's, not the model's. Raises TemplateFault.
        """
        prompt = self.render(messages, tools, thinking)
        whole = self.render([*messages, answer], tools, thinking, add_generation_prompt=False)
        if not whole.startswith(prompt):
            # A closed empty thought that the generation prompt has and a finished turn doesn't.
            prompt = prompt[: prompt.rfind(_ASSISTANT) + len(_ASSISTANT)]
            if not whole.startswith(prompt):
                raise TemplateFault("template_error", "the conversation with its answer does not begin with the prompt")
        text = whole[len(prompt) :]
        end = text.rfind("<|im_end|>")
        return text[:end] if end >= 0 and not text[end:].removeprefix("<|im_end|>").strip() else text

    def prompt_opens_think(self, thinking: bool) -> bool:
        """True when the generation prompt leaves a `<think>` block open, so that the answer begins within it."""
        return self._opens_think[thinking]

    @cached_property
    def _opens_think(self) -> dict[bool, bool]:
        question = [{"role": "user", "content": "?"}]
        opened: dict[bool, bool] = {}
        for thinking in (False, True):
            body = self.template.render(question, None, thinking, add_generation_prompt=False)
            prompt = self.template.render(question, None, thinking)
            tail = prompt[len(body) :] if prompt.startswith(body) else prompt
            opened[thinking] = tail.rfind("<think>") > tail.rfind("</think>")
        return opened

    def _plain_render(self, conversation: Conversation, add_generation_prompt: bool) -> str | None:
        """Rendered text when no message holds a control token; None when one does."""
        messages = normalise_messages(conversation.messages)
        if self._control.occur_in(messages) or self._control.occur_in(conversation.tools):
            return None
        text = self.template.render(messages, conversation.tools, conversation.thinking, add_generation_prompt=add_generation_prompt)
        _check_unicode(text)
        return text

    def _encode_guarded(self, conversation: Conversation, add_generation_prompt: bool) -> list[int]:
        """Ids of a conversation in whose text control tokens stand: they become plain text, the template's own stay."""
        (messages, tools), hidden = self._control.hide([normalise_messages(conversation.messages), conversation.tools])
        text = self.template.render(messages, tools, conversation.thinking, add_generation_prompt=add_generation_prompt)
        _check_unicode(text)
        ids: list[int] = []
        for place, piece in enumerate(self._control.split(text)):
            if place % 2:
                ids.append(self.special_ids[piece])
            elif piece:
                ids += self._text_tokenizer.encode(restore(piece, hidden), add_special_tokens=False).ids
        return ids

    @cached_property
    def _text_tokenizer(self) -> Tokenizer:
        """A copy to which special tokens are text. A copy, since the switch would act on other threads' calls."""
        from tokenizers import Tokenizer

        copy = Tokenizer.from_str(self._tokenizer.to_str())
        copy.encode_special_tokens = True
        return copy

    @cached_property
    def _offset_tokenizer(self) -> Tokenizer:
        """A byte-level post-processor may trim white space off the offsets, so this copy has none."""
        from tokenizers import Tokenizer

        state = orjson.loads(self._tokenizer.to_str())
        if state["post_processor"] is None:
            return self._tokenizer
        return Tokenizer.from_str(orjson.dumps({**state, "post_processor": None}).decode())


def _without_offsets(part: Any) -> Any:
    """Normaliser or pre-tokenizer settings without what moves offsets only."""
    if isinstance(part, dict):
        return {key: _without_offsets(value) for key, value in part.items() if key != "trim_offsets"}
    if isinstance(part, list):
        return [_without_offsets(item) for item in part]
    return part


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TemplateFault("not_unicode", f"lone surrogate at character {error.start}") from None
