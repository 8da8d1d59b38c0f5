"""The splitter against SGLang's own parsers, `/separate_reasoning` and `/parse_function_call`, on every recorded raw text.

A difference must be of a kind that docs/parsers.md explains; its numbers are those of the recorded texts. White space around
reasoning and content is not compared (the server strips it, the splitter keeps it: it is trained on).
"""

import json
import os
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.validation.answer import Answer
from dflash_assets.validation.formats import format_of
from dflash_assets.validation.splitter import split
from dflash_assets.validation.tools import ToolSet, parse_tools
from tests.support.project import ROOT

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
OWN_CASES = ROOT / "tests" / "cases" / "data"
FOLDER = Path(os.environ.get("DFLASH_CASES") or OWN_CASES)
LENIENT = frozenset({"duplicate_key", "invalid_json"})
REPAIRED = frozenset({"missing_parameter_close", "cut_call", "duplicate_parameter", "missing_function"})


@dataclass(frozen=True)
class Theirs:
    """What the server makes of a text."""

    reasoning: str
    content: str
    calls: list[tuple[str, Any]]
    error: int = 0
    """Status of the refusal, 0 for none."""


def texts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for file in sorted(FOLDER.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            given = row.get("input")
            if row.get("input_format") == "completion_text" and isinstance(given, dict) and isinstance(given.get("text"), str):
                found.append(row)
    return found


def post(url: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return 0, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, None


def asked(url: str, given: Mapping[str, Any]) -> Theirs:
    text = re.sub(r"(?:<\|im_end\|>|<\|endoftext\|>)\Z", "", given["text"])
    # The route is not told what the prompt ends with; this parser's name says it.
    parser = "qwen3-thinking" if given.get("generation_prompt_opens_think") else "qwen3"
    status, reply = post(f"{url}/separate_reasoning", {"text": text, "reasoning_parser": parser})
    if status:
        return Theirs("", "", [], status)
    reasoning, content = reply["reasoning_text"] or "", reply["text"] or ""
    parser = "qwen25" if given.get("tool_format") == "hermes_json" else "qwen3_coder"
    body = {"text": content, "tools": given.get("tools") or [], "tool_call_parser": parser}
    status, reply = post(f"{url}/parse_function_call", body)
    if status:
        return Theirs(reasoning, content, [], status)
    return Theirs(reasoning, reply["normal_text"] or "", [(call["name"], _decoded(call["parameters"])) for call in reply["calls"]])


def _decoded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def differences(ours: Answer, theirs: Theirs, tools: ToolSet | None) -> set[str]:
    """Kinds of difference, by the names of docs/parsers.md; `unknown` for one it doesn't explain."""
    faults = {fault.reason for fault in ours.faults}
    calls = [(call.name, call.arguments) for call in ours.calls]
    kinds: set[str] = set()
    if theirs.error:
        return {"ends with an error" if faults & {"too_deep", "lone_surrogate"} else "unknown"}
    if ours.reasoning.strip() != theirs.reasoning.strip():
        kinds.add("call ends the reasoning" if "call_inside_reasoning" in faults else "unknown")
    if repr(calls) != repr(theirs.calls):
        kinds.add(_calls(ours, calls, theirs, faults, tools))
    if ours.content.strip() != theirs.content.strip():
        kinds.add(_content(ours, theirs, faults, kinds))
    return kinds


def _calls(ours: Answer, calls: list[tuple[str, Any]], theirs: Theirs, faults: set[str], tools: ToolSet | None) -> str:
    if calls and not theirs.calls:
        if tools is None:
            return "no tools, no parsing"
        if all(tools.get(name) is None for name, _ in calls):
            return "drops unknown tools"
        return "unknown" if faults else "wants a line feed after the tag"
    if "call_inside_reasoning" in faults:
        return "call ends the reasoning"
    if theirs.calls and not calls:
        if faults & LENIENT:
            return "reads invalid JSON"
        if faults & REPAIRED:
            return "repairs broken calls"
        return "unknown" if faults else "takes an example for a call"
    if len(calls) != len(theirs.calls) or [name for name, _ in calls] != [name for name, _ in theirs.calls]:
        return "unknown"
    pairs = [(mine, other) for (_, mine), (_, other) in zip(calls, theirs.calls, strict=True)]
    if all(isinstance(other, dict) and mine.keys() == other.keys() for mine, other in pairs):
        values = [(mine[key], other[key]) for mine, other in pairs for key in mine if repr(mine[key]) != repr(other[key])]
        if all(isinstance(mine, str) and isinstance(other, str) and mine.startswith(other) and "</" in mine for mine, other in values):
            return "cuts values at a quoted tag"
        return "other types of values"
    return "unknown"


def _content(ours: Answer, theirs: Theirs, faults: set[str], kinds: set[str]) -> str:
    if "text_after_call" in faults:
        return "drops text after a call"
    if "missing_tool_call_open" in faults:
        return "leaves a bare function in the content"
    if "takes an example for a call" in kinds or (
        not faults and "<tool_call>" in ours.content and ours.content.startswith(theirs.content.strip())
    ):
        return "takes an example for a call"
    # Where it takes or leaves a block, it takes or leaves its text.
    explained = kinds - {"unknown"}
    return explained.pop() if len(explained) == 1 else "unknown"


def test_every_difference_is_explained(url: str) -> None:
    counts: Counter[str] = Counter()
    unexplained: dict[str, Any] = {}
    rows = texts()
    for row in rows:
        given = row["input"]
        tools = parse_tools(json.dumps(given["tools"])) if given.get("tools") else None
        form = format_of("qwen3" if given.get("tool_format") == "hermes_json" else "qwen3_5")
        thinking = (given.get("config") or {}).get("thinking", True)
        opened = given.get("generation_prompt_opens_think", False)
        ours = split(given["text"], form, prompt_opens_think=opened, thinking=thinking, tools=tools)
        theirs = asked(url, given)
        kinds = differences(ours, theirs, tools)
        counts.update(kinds)
        if "unknown" in kinds:
            unexplained[row["id"]] = (ours, theirs)
    assert not unexplained
    assert len(rows) > 50
    documented = dict(re.findall(r"^\| ([a-z][^|]*?) \| (\d+) \|", (ROOT / "docs" / "parsers.md").read_text(), re.MULTILINE))
    assert counts.keys() <= documented.keys()
    if FOLDER == OWN_CASES:
        assert counts == {kind: int(number) for kind, number in documented.items()}
