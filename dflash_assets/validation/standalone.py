"""The rules over anybody's completions: a JSONL file of chat responses, messages or raw text, no pipeline needed.

Here: recognising the shape of each line and making events of it, and running rules over a file. Not here: the rules, the
report's pages (`report.py`) and the command (`dflash_assets.cli`).

Shapes of a line (a line of none of them becomes a `Rejected`, with a reason; it never ends the run):
- a chat response, `{"choices": [...], "usage": ...}`, also inside `response` (with `tools`, `prompt`, `request` beside it);
- a conversation, `{"messages": [..., {"role": "assistant", ...}], "tools": [...]}`;
- an assistant message, `{"content": ..., "reasoning_content": ..., "finish_reason": ...}`;
- raw text, `{"text": "..."}` with `generation_prompt_opens_think`, `thinking`, `finish_reason`, or just a JSON string.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dflash_assets.errors import SourceError
from dflash_assets.tables import canonical_json, digest
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.formats.base import Format
from dflash_assets.validation.message import answer_of_message
from dflash_assets.validation.rules.base import RuleResult
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.set_rules import DuplicateParameters
from dflash_assets.validation.shares import Count, RuleShare, share_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.strict_json import JsonFault, decode
from dflash_assets.validation.tally import telling
from dflash_assets.validation.tools import ToolSet, parse_tools

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that holds no completion."""

    line: int
    """From 1."""
    reason: str
    detail: str


@dataclass(slots=True)
class FileResult:
    """What the rules say about one file."""

    path: str
    rows: int = 0
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    shares: list[RuleShare] = field(default_factory=list[RuleShare])
    reasons: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """Rule to reasons of its failures."""
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict[str, list[tuple[str, str]]])
    """Rule to (event id, detail) of its first failures."""
    duplicates: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Excerpt of an answer that several different prompts got (`duplicate_completions`), to the ids of those events."""
    clean_rows: int = 0
    """Rows that break no hard rule."""

    @property
    def passed(self) -> bool:
        """No hard rule is over its limit, and no answer stands under several prompts."""
        return not self.duplicates and not any(share.severity == "hard" and share.verdict == "fail" for share in self.shares)


def validate_file(path: Path, rules: RuleSet, form: Format, *, thinking: bool = True) -> FileResult:
    """Run every rule over a JSONL file, one line in memory at a time, plus a short record of each distinct answer.

    `thinking` is the mode of lines that don't say theirs. Raises SourceError when the file can't be read or holds no
    completion at all.
    """
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            result = validate_lines(lines, rules, form, name=str(path), thinking=thinking)
    except OSError as error:
        raise SourceError(f"can't be read: {error.strerror}", where=str(path), todo="check the path") from error
    if not result.rows:
        first = f"; line {result.rejected[0].line}: {result.rejected[0].detail}" if result.rejected else ""
        raise SourceError(
            f"no completion in the file{first}",
            where=str(path),
            todo='give one JSON object a line: a chat response, a message, or {"text": ...}',
        )
    return result


def validate_lines(lines: Iterable[str], rules: RuleSet, form: Format, *, name: str = "-", thinking: bool = True) -> FileResult:
    """The same over lines of text."""
    result = FileResult(name)
    context = ValidationContext(form)
    counts = {rule.name: Count() for rule in rules.rules}
    prompts_of: dict[str, tuple[str, dict[str, str]]] = {}
    fewest = _fewest_duplicates(rules)
    for item in events_of_lines(lines, form, thinking=thinking):
        if isinstance(item, Rejected):
            result.rejected.append(item)
            continue
        result.rows += 1
        broken = False
        for rule in rules.rules:
            verdict: RuleResult = rule(item, context)
            if verdict.passed is None:
                continue
            counts[rule.name].add(1, not verdict.passed)
            if verdict.passed:
                continue
            broken = broken or rule.severity == "hard"
            result.reasons.setdefault(rule.name, Counter())[verdict.reason or "failed"] += 1
            examples = result.examples.setdefault(rule.name, [])
            if len(examples) < _EXAMPLES:
                examples.append((item.event_id, verdict.detail or ""))
        result.clean_rows += not broken
        answer = item.answer.reasoning + item.answer.content
        if fewest and telling(len(item.answer.content), len(item.answer.reasoning)):
            _, known = prompts_of.setdefault(digest(answer, length=16), (answer[-80:], {}))
            known.setdefault(item.prompt_id, item.event_id)
    result.duplicates = {excerpt: list(known.values()) for excerpt, known in prompts_of.values() if len(known) >= fewest} if fewest else {}
    result.shares = [
        share_of(rule.name, rule.severity, counts[rule.name], rule.limit, rules.confidence, complete=True) for rule in rules.rules
    ]
    return result


def _fewest_duplicates(rules: RuleSet) -> int:
    """Different prompts with one answer that `duplicate_completions` fails; 0 when it is switched off."""
    found = (rule.parameters for rule in rules.set_rules if rule.name == "duplicate_completions")
    return next((parameters.minimum_prompts for parameters in found if isinstance(parameters, DuplicateParameters)), 0)


def events_of_lines(lines: Iterable[str], form: Format, *, thinking: bool = True) -> Iterator[Event | Rejected]:
    """Events of JSONL lines in order; blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = decode(line.lstrip("\ufeff"))
        except JsonFault as fault:
            yield Rejected(number, "not_json", fault.detail)
            continue
        if isinstance(value, str):
            value = {"text": value}
        if not isinstance(value, dict):
            yield Rejected(number, "not_an_object", f"the line is {type(value).__name__}")
            continue
        yield event_of_row(cast(dict[str, Any], value), form, number, thinking=thinking)


def event_of_row(row: Mapping[str, Any], form: Format, number: int = 0, *, thinking: bool = True) -> Event | Rejected:
    """The event of one decoded line; `number` is its line, which names it when it has no `id`."""
    request = _object(row.get("request"))
    tools = _tools(row.get("tools") or request.get("tools"))
    mode = _thinking(row, request, thinking)
    body = row.get("response") if isinstance(row.get("response"), dict) else row
    response = cast(dict[str, Any], body)
    text = response.get("text")
    if isinstance(text, str):
        opens = row.get("generation_prompt_opens_think")
        opened = opens if isinstance(opens, bool) else form.prompt_opens_think(mode)
        answer = split(text, form, prompt_opens_think=opened, thinking=mode, tools=tools)
        finish = response.get("finish_reason")
        message: Mapping[str, Any] = {}
    else:
        found = _message(response)
        if isinstance(found, str):
            return Rejected(number, found, "neither a chat response, messages, an assistant message nor a text")
        message, finish = found
        text = ""
        answer = answer_of_message(message, form, tools, thinking=mode)
    prompt = _prompt(row)
    usage = _object(response.get("usage"))
    tokens = usage.get("completion_tokens", row.get("completion_tokens"))
    limit = request.get("max_tokens", row.get("max_tokens"))
    return Event(
        str(row.get("id") or f"line {number}"),
        digest(prompt, length=16) if prompt else f"line {number}",
        text,
        answer,
        finish if isinstance(finish, str) else _finish_of(message),
        output_tokens=tokens if isinstance(tokens, int) else None,
        max_tokens=limit if isinstance(limit, int) else None,
        thinking=mode,
        prompt_text=prompt,
        tools=tools,
        tool_choice=_tool_choice(request.get("tool_choice")),
    )


def _message(response: Mapping[str, Any]) -> tuple[Mapping[str, Any], object] | str:
    choices = response.get("choices")
    if choices is not None:
        first = _object(cast(list[Any], choices)[0]) if isinstance(choices, list) and choices else {}
        message = first.get("message")
        return (cast(dict[str, Any], message), first.get("finish_reason")) if isinstance(message, dict) else "no_message"
    messages = response.get("messages")
    if isinstance(messages, list):
        last = _object(cast(list[Any], messages)[-1]) if messages else {}
        return (last, response.get("finish_reason")) if last.get("role") == "assistant" else "no_assistant_message"
    if "content" in response or "tool_calls" in response:
        return response, response.get("finish_reason")
    return "unknown_shape"


def _finish_of(message: Mapping[str, Any]) -> str:
    """A file without finish reasons holds finished answers."""
    return "tool_calls" if message.get("tool_calls") else "stop"


def _tools(value: object) -> ToolSet | None:
    if not value:
        return None
    return parse_tools(value if isinstance(value, str) else canonical_json(value))


def _tool_choice(value: object) -> str:
    """`auto`, `none` or `required`; a choice that names a function (an object) requires a call too."""
    return "required" if isinstance(value, dict) else str(value or "auto")


def _thinking(row: Mapping[str, Any], request: Mapping[str, Any], default: bool) -> bool:
    for asked in (row.get("thinking"), _object(request.get("chat_template_kwargs")).get("enable_thinking")):
        if isinstance(asked, bool):
            return asked
    return default


def _prompt(row: Mapping[str, Any]) -> str:
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    messages = row.get("messages")
    for message in reversed(cast(list[Any], messages) if isinstance(messages, list) else []):
        fields = _object(message)
        if fields.get("role") == "user":
            content = fields.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _object(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
