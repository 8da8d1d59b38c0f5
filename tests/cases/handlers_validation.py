"""Recorded faults of tool calls, reasoning and degeneration (families 1, 2, 3 and S627) against the splitter and the rules.

Every expected field of a row is compared: one that this handler doesn't know is an error, so nothing passes unread.
"""

from __future__ import annotations

import json
from typing import Any

from dflash_assets.recipe.validation import RuleSettings, ValidationSpec
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.rules.base import RuleResult
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.standalone import event_of_row, validate_lines
from tests.support.cases import NotHandled

FAMILIES = ("1_tool_call_text", "2_reasoning", "3_degeneration")
RULES = RuleSet.from_spec(ValidationSpec(rules={"duplicate_completions": RuleSettings(parameters={"minimum_prompts": 3})}))
# Said for people, or checked through another field of the same row.
REMARKS = frozenset({"must_not_raise", "calls_source"})


def handle(row: dict[str, Any]) -> None:
    """Check one row; raises NotHandled for rows of other handlers, AssertionError where the product is wrong."""
    given, form = row["input"], row["input_format"]
    if row["id"] == "S627":
        given = {"response": given["script"][0]["json"], "tools": given["tools"]}
    elif row["family"] not in FAMILIES or form == "http_behaviour":
        raise NotHandled(row["id"])
    if form == "jsonl_file":
        _check_set(given["lines"], row["expected"])
    else:
        _check_row(given, row["expected"])


def _check_row(given: dict[str, Any], expected: dict[str, Any]) -> None:
    form = format_of("qwen3" if given.get("tool_format") == "hermes_json" else "qwen3_5")
    event = event_of_row(given, form)
    assert isinstance(event, Event), event
    context = ValidationContext(form)
    results = {rule.name: rule(event, context) for rule in RULES.rules}
    if event.text:
        assert "".join(event.text[span.start:span.end] for span in event.answer.spans) == event.text
    alternatives = expected.get("either", [{}])
    common = {name: value for name, value in expected.items() if name != "either"}
    errors: list[str] = []
    for alternative in alternatives:
        try:
            _compare(event, results, {**common, **alternative})
        except AssertionError as error:
            errors.append(str(error))
    assert len(errors) < len(alternatives), errors


def _compare(event: Event, results: dict[str, RuleResult], expected: dict[str, Any]) -> None:
    hard = {rule.name for rule in RULES.rules if rule.severity == "hard"}
    failures = {name: result for name, result in results.items() if result.passed is False}
    failed = set(failures) & hard
    details = " ".join(result.detail or "" for result in failures.values())
    answer = event.answer
    calls = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
    seen: dict[str, object] = {
        "verdict": "fail" if failed else "pass",
        "rules_failed": sorted(failed),
        "reasoning": answer.reasoning,
        "content": answer.content,
        "calls": calls,
        "finish_reason_class": event.finish_class,
        "flags": [result.reason for name, result in failures.items() if name not in hard],
        "warnings": list(answer.flags),
        "truncated_call": any(fault.reason == "cut_call" for fault in answer.faults),
        "limit_hit_in": "reasoning" if answer.reasoning_closed is False else "content",
        "rerender_equals_generated": not any(fault.reason == "text_after_call" for fault in answer.faults),
    }
    for name, value in expected.items():
        if name in REMARKS:
            continue
        if name == "rules_failed":
            assert seen[name] == sorted(value), f"{seen[name]} {failures}"
        elif name == "rules_failed_include":
            assert set(value) <= failed, failures
        elif name == "reason":
            assert value in [result.reason for result in failures.values()], failures
        elif name == "warnings_include":
            assert set(value) <= set(answer.flags), answer.flags
        elif name == "content_contains":
            assert all(piece in answer.content for piece in value)
        elif name == "argument_codepoints":
            assert {key: [ord(char) for char in calls[0]["arguments"][key]] for key in value} == value
        elif name == "schema_error_path":
            assert f": {value}: " in (failures["tool_args_schema"].detail or ""), failures
        elif name == "schema_error_keyword":
            assert failures["tool_args_schema"].reason == value, failures
        elif name in ("repetition_in", "residual_in", "leaked"):
            assert all(piece in details for piece in ([value] if isinstance(value, str) else value)), details
        else:
            assert name in seen, f"expected field {name!r} is not compared"
            assert seen[name] == value, f"{name}: {seen[name]!r} is not {value!r}"


def _check_set(lines: list[str], expected: dict[str, Any]) -> None:
    assert all(isinstance(json.loads(line), dict) for line in lines)
    result = validate_lines(lines, RULES, format_of("qwen3_5"))
    assert result.rows == expected["rows"]
    assert not result.rejected
    failed = [share.rule for share in result.shares if share.failed]
    assert not failed, "every row is fine on its own"
    assert (["duplicate_completions"] if result.duplicates else []) == expected["dataset_rules_failed"]
    assert [len(ids) for ids in result.duplicates.values()] == [expected["duplicate_group_size"]]
