"""Recorded faults of tool calls, reasoning and degeneration against the splitter and the rules.

Rows are told apart by their shape, never by their id. Every key of `expected` is compared; an unknown one fails the row.
"""

from __future__ import annotations

import json
from typing import Any

from dflash_assets.recipe.validation import RuleSettings, ValidationSpec
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.file_rows import event_of_row
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.formats.base import Format
from dflash_assets.validation.rules.base import RuleResult
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.standalone import validate_lines
from tests.support.cases import NotHandled
from tests.support.qwen import qwen_tokenizer

Row = dict[str, Any]
_INPUT = frozenset({
    "text", "generation_prompt_opens_think", "tool_format", "finish_reason", "tools", "request", "response", "config", "prompt", "thinking", "usage",
    "completion_tokens", "max_tokens", "messages",
})  # fmt: skip
_CONFIG = frozenset({"require_reasoning", "thinking", "allowed_finish_reasons", "min_output_tokens", "max_output_tokens"})


def handle(row: Row) -> None:
    """Check one row; raises NotHandled for rows of other handlers, AssertionError where the product is wrong."""
    given, expected, form = row.get("input") or {}, row["expected"], row.get("input_format")
    if form == "http_behaviour" and "verdict" in expected:
        # A reply that only a validator can judge: no engine is asked again, and none raises.
        [step] = given["script"]
        given = {"response": step["json"], **{key: given[key] for key in ("tools", "request", "config") if key in given}}
    elif form == "jsonl_file" and "dataset_rules_failed" in expected:
        _check_set(given, expected)
        return
    elif form not in ("completion_text", "chat_response_json") or "input_ids" in expected:
        raise NotHandled(row.get("id"))
    _check_row(given, expected)


def _rules(config: Row) -> RuleSet:
    unknown = config.keys() - _CONFIG
    assert not unknown, f"unknown configuration {sorted(unknown)}"
    rules: dict[str, RuleSettings] = {"duplicate_completions": RuleSettings(parameters={"minimum_prompts": 3})}
    if not config.get("require_reasoning", True) and config.get("thinking", True):
        rules["reasoning_present"] = RuleSettings(enabled=False)
    if "allowed_finish_reasons" in config:
        rules["finish_reason"] = RuleSettings(parameters={"allowed": config["allowed_finish_reasons"]})
    tokens = {"minimum": config.get("min_output_tokens"), "maximum": config.get("max_output_tokens")}
    if any(tokens.values()):
        rules["output_tokens_range"] = RuleSettings(parameters={key: value for key, value in tokens.items() if value is not None})
    return RuleSet.from_spec(ValidationSpec(rules=rules))


def _check_row(given: Row, expected: Row) -> None:
    unknown = given.keys() - _INPUT
    assert not unknown, f"unknown input {sorted(unknown)}"
    form = format_of({"hermes_json": "qwen3", "qwen3_xml": "qwen3_5"}[given.get("tool_format", "qwen3_xml")])
    config = given.get("config") or {}
    rules = _rules(config)
    event = event_of_row(given, form, thinking=config.get("thinking", True))
    assert isinstance(event, Event), event
    context = ValidationContext(form)
    results = {rule.name: rule(event, context) for rule in rules.rules}
    if event.text:
        assert "".join(event.text[span.start : span.end] for span in event.answer.spans) == event.text
    hard = {rule.name for rule in rules.rules if rule.severity == "hard"}
    opened = given.get("generation_prompt_opens_think", False)
    alternatives = expected.get("either", [{}])
    common = {name: value for name, value in expected.items() if name != "either"}
    errors: list[str] = []
    for alternative in alternatives:
        try:
            _compare(event, results, hard, {**common, **alternative}, form, opened)
        except AssertionError as error:
            errors.append(str(error))
    assert len(errors) < len(alternatives), errors


def _compare(event: Event, results: dict[str, RuleResult], hard: set[str], expected: Row, form: Format, opened: bool) -> None:
    failures = {name: result for name, result in results.items() if result.passed is False}
    failed = set(failures) & hard
    answer = event.answer
    calls = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
    seen: dict[str, object] = {
        "verdict": "fail" if failed else "pass",
        "rules_failed": sorted(failed),
        "reasoning": answer.reasoning,
        "content": answer.content,
        "calls": calls,
        "calls_source": "content_text" if event.text or "server_tool_parser_missing" in answer.flags else "tool_calls",
        "finish_reason_class": event.finish_class,
        "flags": [result.reason for name, result in failures.items() if name not in hard],
        "warnings": list(answer.flags),
        "truncated_call": any(fault.reason == "cut_call" for fault in answer.faults),
        "limit_hit_in": ("reasoning" if answer.reasoning_closed is False else "content") if event.finish_class == "length" else None,
    }
    for name, value in expected.items():
        if name == "must_not_raise":
            assert value  # getting here is what is asked for
        elif name == "rules_failed":
            assert seen[name] == sorted(value), f"{seen[name]} {failures}"
        elif name == "rules_failed_include":
            assert set(value) <= failed, failures
        elif name == "reason":
            assert value in [result.reason for result in failures.values()], failures
        elif name in ("warnings_include", "flags_include"):
            assert set(value) <= {*answer.flags, *(result.reason for result in failures.values())}, (answer.flags, failures)
        elif name == "rerender_equals_generated":
            assert value is (_rerendered(event, form, opened) == event.text.removesuffix("<|im_end|>"))
        elif name == "normalised":
            assert _normalised(value, answer.flags), answer.flags
        elif name == "content_contains":
            assert all(piece in answer.content for piece in _list(value)), answer.content
        elif name == "content_not_contains":
            assert not any(piece in answer.content for piece in _list(value)), answer.content
        elif name == "argument_codepoints":
            assert {key: [ord(char) for char in calls[0]["arguments"][key]] for key in value} == value
        elif name == "schema_error_path":
            assert f": {value}: " in (failures["tool_args_schema"].detail or ""), failures
        elif name == "schema_error_keyword":
            assert failures["tool_args_schema"].reason == value, failures
        elif name == "repetition_in":
            detail = failures["no_repetition"].detail or ""
            assert all(f"in the {piece}" in detail or f"in a {piece}" in detail for piece in _list(value)), detail
        elif name == "residual_in":
            assert all(piece in (failures["reasoning_present"].detail or "") for piece in _list(value)), failures
        elif name == "leaked":
            assert all(piece in (failures["clean_text"].detail or "") for piece in _list(value)), failures
        else:
            assert name in seen, f"unknown expectation {name!r}"
            assert seen[name] == value, f"{name}: {seen[name]!r} is not {value!r}"


def _rerendered(event: Event, form: Format, opened: bool) -> str:
    """What the family's template prints for the answer taken apart, from where the generation prompt ended."""
    tokenizer = qwen_tokenizer("Qwen3.6" if form.name == "qwen3_5" else "Qwen3 (JSON calls)")
    answer = event.answer
    calls = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in answer.calls]
    message = {"role": "assistant", "reasoning_content": answer.reasoning, "content": answer.content, "tool_calls": calls}
    text = tokenizer.answer_text([{"role": "user", "content": "q"}], None, event.thinking, message)
    return text.removeprefix("<think>\n") if opened else text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _normalised(wanted: object, flags: tuple[str, ...]) -> bool:
    """True or false: was anything normalised? Names: each of them is a flag."""
    return bool(flags) is wanted if isinstance(wanted, bool) else set(_list(wanted)) <= set(flags)


def _check_set(given: Row, expected: Row) -> None:
    assert all(isinstance(json.loads(line), dict) for line in given["lines"])
    result = validate_lines(given["lines"], _rules(given.get("config") or {}), ValidationContext(format_of("qwen3_5")))
    assert not result.rejected
    groups = [group.prompts for group in result.facts.tally.duplicates.values() if group.prompts >= 3]
    assert not [share.rule for share in result.facts.shares if share.failed and share.severity == "hard"], "every row is fine on its own"
    for name, value in expected.items():
        if name == "rows":
            assert result.rows == value
        elif name == "dataset_rules_failed":
            assert [name for name in result.broken if name == "duplicate_completions"] == value
        elif name == "duplicate_group_size":
            assert groups == [value]
        elif name == "verdict":
            assert ("pass" if result.passed else "fail") == value
        elif name == "rules_failed":
            assert value == []
        else:
            raise AssertionError(f"unknown expectation {name!r}")
