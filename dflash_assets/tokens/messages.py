"""Messages as templates want them: the last normalisation before rendering, the same for every family.

Here: arguments as objects, no nulls, reasoning in its own field, control tokens typed by people. Not here: mapping
an upstream data set's roles and fields (`dflash_assets.sources`), and rendering (`template.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from dflash_assets.tokens.template import Message, TemplateFault

_ROLES = ("system", "user", "assistant", "tool")
_PART_TYPES = ("text", "image", "image_url", "video")  # OpenAI's and the templates' names
_THINK, _END_THINK = "<think>", "</think>"
# Plane 15 is private: no text has a reason to hold these, and a block that is in use is stepped over.
_PRIVATE_FIRST, _PRIVATE_LAST = 0xF0000, 0xFFFFD


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages with null fields dropped, `arguments` as objects (key order kept), content as text, reasoning split off.

    * content null -> "" ; an object or list of a tool message -> JSON text; text parts are joined
    * `reasoning` (vLLM's name) -> `reasoning_content`; a `<think>` block at the head of assistant content moves there too,
      since Qwen3.8 would print it twice
    * a leading `developer` turn -> `system`

    Raises TemplateFault: `bad_arguments` when a call's arguments are no JSON object; `residual_think_marker` when an
    assistant turn holds a lone `</think>`, which Qwen's templates tear in two without a word; `unknown_role` (Qwen3's template
    skips such a message without a word), `system_in_middle`, `no_user_turn`, and `null_content` for a user or system message of
    null, all whatever the template would make of them; `template_error` for a message or call that is no object.
    """
    normal = [_normalise(message, index) for index, message in enumerate(messages)]
    if not any(message["role"] == "user" for message in normal):
        raise TemplateFault("no_user_turn", "no message is a user's")
    return normal


def _normalise(message: Any, index: int) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TemplateFault("template_error", f"message {index} is no object with a role")
    out: Message = {key: value for key, value in message.items() if value is not None}
    if index == 0 and out["role"] == "developer":
        out["role"] = "system"
    if out["role"] not in _ROLES:
        raise TemplateFault("unknown_role", f"message {index} has the role {out['role'][:40]!r}")
    if index and out["role"] == "system":
        raise TemplateFault("system_in_middle", f"message {index} is a system message after the conversation began")
    if "content" not in out and out["role"] in ("user", "system"):
        raise TemplateFault("null_content", f"message {index} ({out['role']}) has no content")
    out["content"] = _content(out.get("content", ""), index)
    if out["role"] == "assistant":
        if "reasoning" in out:
            out.setdefault("reasoning_content", out.pop("reasoning"))
        _split_reasoning(out, index)
        if "tool_calls" in out:
            calls = [_call(call, index) for call in _list(out["tool_calls"], index)]
            out["tool_calls"] = calls
            if not calls:
                del out["tool_calls"]
    return out


def _list(value: Any, index: int) -> list[Any]:
    if not isinstance(value, list):
        raise TemplateFault("template_error", f"message {index}: tool_calls is no list")
    return value


def _content(content: Any, index: int) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content and all(isinstance(part, Mapping) and part.get("type") in _PART_TYPES for part in content):
        if not all(isinstance(part.get("text"), str) for part in content):
            raise TemplateFault("template_error", f"message {index} holds something else than text")
        return "".join(part["text"] for part in content)
    return json.dumps(content, ensure_ascii=False)


def _split_reasoning(message: Message, index: int) -> None:
    content: str = message["content"]
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str):
        if _END_THINK in reasoning:
            raise TemplateFault("residual_think_marker", f"message {index}: {_END_THINK} within reasoning_content")
        return
    if _END_THINK not in content:
        return
    head, body = content.split(_END_THINK, 1)
    if not head.lstrip().startswith(_THINK) or _END_THINK in body:
        raise TemplateFault(
            "residual_think_marker", f"message {index}: a lone {_END_THINK} in content, which the template would take for reasoning"
        )
    message["reasoning_content"] = head.lstrip()[len(_THINK) :].strip("\n")
    message["content"] = body.lstrip("\n")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _call(call: Any, index: int) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise TemplateFault("template_error", f"message {index}: a tool call is no object")
    wrapped = isinstance(call.get("function"), Mapping)
    function = dict(call["function"] if wrapped else call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # An empty string is how servers write a call without parameters.
        try:
            # Not orjson: it turns integers beyond 64 bits into floats, and the model would read another number.
            arguments = json.loads(arguments, parse_constant=_no_constant) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise TemplateFault("bad_arguments", f"message {index}: arguments are no JSON ({error})") from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise TemplateFault("bad_arguments", f"message {index}: arguments are no JSON object but {type(arguments).__name__}")
    function["arguments"] = arguments
    return {**call, "function": function} if wrapped else function


class ControlTokens:
    """Keeps control tokens that stand in somebody's text apart from those the template writes.

    A user who types `<|im_end|>` must not end his turn (vllm-project/vllm#31735). Before rendering, each control token in
    a message or tool is replaced by one private-use character, so that trimming, splitting and JSON in the template
    treat it as the text it is; afterwards the rendered text is cut at the real control tokens, and the runs between
    are encoded as plain text. Control tokens are the tokenizer's *special* added tokens. Others, such as `<think>`
    and `<tool_call>`, stay as they are: models write and read them as text, and templates look for them.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = sorted(tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._tokens)) or "(?!)")
        self._whole = re.compile(f"({self._pattern.pattern})")
        ends = zip(min(self._tokens, default=""), max(self._tokens, default=""), strict=False)
        self._head = "".join(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], ends))

    def occur_in(self, value: Any) -> bool:
        """True when a string (or key) anywhere in nested lists and dicts holds a control token."""
        search, head = self._pattern.search, self._head
        waiting = [value]
        for one in waiting:  # it grows on the way
            if isinstance(one, str):
                if head in one and search(one):  # looking for what all tokens begin with is far quicker than the pattern
                    return True
            elif isinstance(one, dict | Mapping):  # dict first: asking an abstract class takes longer
                waiting += one
                waiting += one.values()
            elif isinstance(one, list | tuple):
                waiting += one
        return False

    def hide(self, value: Any) -> tuple[Any, dict[str, str]]:
        """A copy with each control token as one character, and the map from character back to token."""
        used = set[str]()
        _map_strings(value, lambda text: used.update(text) or text)
        start = _PRIVATE_FIRST
        while any(chr(start + offset) in used for offset in range(len(self._tokens))):
            start += len(self._tokens)
            if start + len(self._tokens) > _PRIVATE_LAST:
                raise TemplateFault("control_tokens", "the text uses every private code point of plane 15")
        names = {token: chr(start + offset) for offset, token in enumerate(self._tokens)}
        hidden = _map_strings(value, lambda text: self._pattern.sub(lambda found: names[found[0]], text))
        return hidden, {character: token for token, character in names.items()}

    def split(self, rendered: str) -> list[str]:
        """Text cut at control tokens: even items are runs between them (possibly empty), odd items control tokens."""
        return self._whole.split(rendered)


def restore(text: str, hidden: Mapping[str, str]) -> str:
    """Text with hidden control tokens written out again."""
    return text.translate({ord(character): token for character, token in hidden.items()})


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key) if isinstance(key, str) else key: _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
