"""Rules about tool calls: well formed, of a tool that was offered, with arguments its schema accepts.

Not here: reading calls (`dflash_assets.validation.formats`), compiling schemas (`dflash_assets.validation.tools`), and the
specification itself (`tool_spec_format` in `set_rules.py`).
"""

from __future__ import annotations

from typing import Any

from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.patterns import PatternFault
from dflash_assets.validation.rules.base import NOT_APPLICABLE, PASSED, NoParameters, RuleResult, failed, rule


@rule()
def tool_calls_wellformed(event: Event, context: ValidationContext, parameters: NoParameters) -> RuleResult:
    """Every tool call is exactly in the model's own format; a call that must be there is there. Nothing is repaired."""
    if not context.form.has_tools:
        return NOT_APPLICABLE
    answer = event.answer
    # Without tools on offer, a closing tag on a line of its own is an answer about XML.
    faults = [fault for fault in answer.faults if event.tools is not None or fault.reason != "leaked_markup"]
    if faults:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        return failed(first.reason, f"{first.detail} at {first.start}{more}")
    if answer.calls:
        return PASSED
    if event.tool_choice == "required":
        return failed("required_call_absent", "a call was required and none was made")
    if event.finish_reason == "tool_calls":
        return failed("finish_without_call", "finish reason is tool_calls and there is no call")
    return NOT_APPLICABLE


@rule()
def tool_name_known(event: Event, context: ValidationContext, parameters: NoParameters) -> RuleResult:
    """Every called tool was offered by the prompt. Names are opaque: dots, dashes and colons are part of them."""
    calls = event.answer.calls
    if not calls:
        return NOT_APPLICABLE
    for call in calls:
        if event.tools is None or event.tools.get(call.name) is None:
            offered = ", ".join(list(event.tools.tools)[:8]) if event.tools else "none"
            return failed("unknown_tool", f"{call.name[:80]!r} was not offered (offered: {offered})")
    return PASSED


@rule()
def tool_args_schema(event: Event, context: ValidationContext, parameters: NoParameters) -> RuleResult:
    """The arguments of every call fit the tool's JSON Schema (Draft 2020-12, local `$ref`), without any coercion."""
    checked = False
    for call in event.answer.calls:
        if not isinstance(call.arguments, dict):
            kind = "double_encoded" if isinstance(call.arguments, str) else "arguments_not_an_object"
            return failed(kind, f"arguments of {call.name[:80]!r} are {type(call.arguments).__name__}, not an object")
        tool = event.tools.get(call.name) if event.tools else None
        validator = tool.validator if tool else None
        if validator is None:
            continue
        try:
            error: Any = next(validator.iter_errors(call.arguments), None)
        except PatternFault as fault:
            return failed(fault.reason, f"{call.name[:80]}: {fault.detail}")
        except RecursionError:
            return failed("schema_recursion", f"arguments or schema of {call.name[:80]!r} are nested too deep to check")
        if error is not None:
            path = ".".join(str(part) for part in error.absolute_path)
            return failed(str(error.validator), f"{call.name[:80]}: {path or '(arguments)'}: {str(error.message)[:200]}")
        checked = True
    return PASSED if checked else NOT_APPLICABLE
