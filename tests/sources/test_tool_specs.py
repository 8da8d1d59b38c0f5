"""Tool specs of every origin in one form."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.sources.records import RowFault
from dflash_assets.sources.tool_specs import normalise_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CANONICAL = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}]


@pytest.mark.parametrize(
    ("raw", "flags"),
    [
        (CANONICAL, set()),
        (json.dumps(CANONICAL), set()),
        (repr(CANONICAL), {"python_literal_parsed"}),
        ([json.dumps(CANONICAL[0])], set()),
        (CANONICAL[0], {"tools_wrapped_in_list"}),
        ([{"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA}], {"tool_converted"}),
        ([{"name": "weather", "description": "d", "input_schema": SCHEMA}], {"tool_converted"}),
        ([{"name": "weather", "description": "d", "parameters": {**SCHEMA, "type": "dict"}}], {"tool_converted", "tool_types_mapped"}),
        ([{"function": CANONICAL[0]["function"]}], {"tool_spec_completed"}),
        ([*CANONICAL, *CANONICAL], {"duplicate_tool_removed"}),
        ([*CANONICAL, {"type": "web_search_20250305", "name": "web_search"}], {"server_tool_dropped"}),
        ("\n".join([json.dumps(CANONICAL[0])]) + "\n", {"tools_wrapped_in_list"}),
    ],
)
def test_every_shape_becomes_the_same_spec(raw: Any, flags: set[str]) -> None:
    found: set[str] = set()
    assert normalise_tools(raw, found) == CANONICAL
    assert found == flags


@pytest.mark.parametrize("raw", [None, "", "  ", "[]", "null", [], {}])
def test_no_tools_are_none(raw: Any) -> None:
    assert normalise_tools(raw, set()) is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('[{"type": ', "tools_unparsable"),
        ("__import__('os')", "tools_unparsable"),
        ([42], "tools_unparsable"),
        ([{"type": "function", "function": {"description": "nameless"}}], "tools_unparsable"),
        ([{"name": "f", "parameters": [1]}], "tools_unparsable"),
        (json.dumps(CANONICAL[0]) + '\n{"name": "b', "tools_unparsable"),
        ([*CANONICAL, {"name": "weather", "parameters": SCHEMA}], "duplicate_tool_name"),
    ],
)
def test_what_cannot_be_read_rejects_the_row(raw: Any, reason: str) -> None:
    with pytest.raises(RowFault) as caught:
        normalise_tools(raw, set())
    assert caught.value.reason == reason


def test_foreign_types_are_mapped_deeply_and_properties_called_type_are_left_alone() -> None:
    schema = {
        "type": "dict",
        "properties": {
            "type": {"type": "any", "description": "a property called type"},
            "rows": {"type": "tuple", "items": {"type": "float"}},
        },
    }
    [tool] = normalise_tools([{"name": "f", "description": "", "parameters": schema}], set()) or []
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"type": {"description": "a property called type"}, "rows": {"type": "array", "items": {"type": "number"}}},
    }


def test_toolbench_lists_become_a_schema() -> None:
    spec = {
        "tool_name": "Air Lines", "api_name": "/track/:id", "api_description": " Tracks. ",
        "required_parameters": [{"name": "id", "type": "STRING", "description": "Task", "default": ""}],
        "optional_parameters": [{"name": "limit", "type": "NUMBER", "description": "", "default": 10}],
    }  # fmt: skip
    [tool] = normalise_tools([spec], set()) or []
    assert tool["function"] == {
        "name": "track_id_for_air_lines", "description": "Tracks.",
        "parameters": {
            "type": "object",
            "properties": {"id": {"type": "string", "description": "Task"}, "limit": {"type": "number", "description": "", "default": 10}},
            "required": ["id"],
        },
    }  # fmt: skip


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "function", "name", "parameters", "properties", "api_name"]), inner, max_size=4)
        ),
    )
)
def test_any_value_gives_specs_or_a_row_fault(raw: Any) -> None:
    reason, tools = None, None
    try:
        tools = normalise_tools(raw, set())
    except RowFault as fault:
        reason = fault.reason
    assert reason in (None, "tools_unparsable", "duplicate_tool_name")
    assert all(set(tool["function"]) == {"name", "description", "parameters"} for tool in tools or ())


@pytest.mark.skipif(not os.environ.get("DFLASH_SAMPLES"), reason="needs public sample rows: set DFLASH_SAMPLES")
@pytest.mark.parametrize(
    ("file", "column"),
    [("bfcl_v4_simple_python", "function"), ("bfcl_v4_live_multiple", "function"), ("toolbench_G1_G3_queries", "api_list")],
)
def test_public_specs_are_valid_json_schema(file: str, column: str) -> None:
    import jsonschema

    for line in (Path(os.environ["DFLASH_SAMPLES"]) / "agents" / f"{file}.jsonl").read_text(encoding="utf-8").split("\n"):
        if line:
            for tool in normalise_tools(json.loads(line)[column], set()) or ():
                jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])
