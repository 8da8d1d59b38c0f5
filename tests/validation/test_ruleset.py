from __future__ import annotations

import re
import sys
import types
from typing import Any

import pytest

from dflash_assets.errors import RecipeError
from dflash_assets.recipe.validation import RuleSettings, ValidationSpec
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.rules import BUILTIN
from dflash_assets.validation.rules.base import PASSED, NoParameters, RuleResult, failed, rule
from dflash_assets.validation.ruleset import RuleSet
from dflash_assets.validation.set_rules import BUILTIN_SET
from tests.support.validation import context, event


def ruleset(rules: dict[str, dict[str, Any]], **options: Any) -> RuleSet:
    return RuleSet.from_spec(ValidationSpec(rules={name: RuleSettings(**settings) for name, settings in rules.items()}), **options)


def named(rules: RuleSet, name: str) -> Any:
    return next(found for found in (*rules.rules, *rules.set_rules) if found.name == name)


def test_defaults() -> None:
    rules = ruleset({})
    assert [found.name for found in rules.rules] == list(BUILTIN)
    assert [found.name for found in rules.set_rules] == list(BUILTIN_SET)
    assert {found.name for found in rules.rules if found.severity == "soft"} == {"language_match", "refusal"}
    assert all(found.doc for found in (*rules.rules, *rules.set_rules))


def test_settings() -> None:
    rules = ruleset(
        {
            "output_tokens_range": {"parameters": {"minimum": 16}, "severity": "soft", "max_failed_share": 0.5},
            "refusal": {"enabled": False},
            "truncation_share": {"max_failed_share": 0.1},
        }
    )
    found = named(rules, "output_tokens_range")
    assert (found.severity, found.limit, found.parameters.minimum) == ("soft", 0.5, 16)
    assert "refusal" not in [rule.name for rule in rules.rules]
    assert named(rules, "truncation_share").limit == 0.1
    assert rules.fingerprint() != ruleset({}).fingerprint() == ruleset({}).fingerprint()


def test_cut_answers_are_wanted_when_kept_open() -> None:
    cut = event("a", finish_reason="length")
    assert named(ruleset({}, on_length="drop"), "finish_reason")(cut, context()).passed is False
    assert named(ruleset({}, on_length="keep_open"), "finish_reason")(cut, context()).passed is True
    explicit = {"finish_reason": {"parameters": {"allowed": ["stop"]}}}
    assert named(ruleset(explicit, on_length="keep_open"), "finish_reason")(cut, context()).passed is False


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"no_repetitions": {}}, "validation.rules.no_repetitions: no rule is named 'no_repetitions'\n  -> did you mean 'no_repetition'?"),
        ({"zzz": {}}, "built-in rules: reasoning_present"),
        (
            {"output_tokens_range": {"parameters": {"minimun": 3}}},
            "output_tokens_range.parameters.minimun: Extra inputs are not permitted\n  -> did you mean 'minimum'?",
        ),
        (
            {"output_tokens_range": {"parameters": {"minimum": "many"}}},
            "output_tokens_range.parameters.minimum: Input should be a valid integer",
        ),
        ({"clean_text": {"parameters": {"markers": 3}}}, "clean_text.parameters.markers"),
        ({"refusal": {"parameters": {"x": 1}}}, "parameters of refusal: none"),
        ({"no.such.module:rule": {}}, "can't import 'no.such.module'"),
        ({"json:nothing": {}}, "'nothing' in 'json' is missing, not a rule"),
        ({"json:__name__": {}}, "'__name__' in 'json' is str, not a rule"),
    ],
)
def test_errors_name_the_place_and_the_way_out(rules: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        ruleset(rules)


def test_rules_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users_rules")

    @rule(severity="hard")
    def mentions_units(found: Event, around: ValidationContext, parameters: NoParameters) -> RuleResult:
        """Has a unit."""
        return PASSED if "km" in found.answer.content else failed("no_unit", "no unit")

    def plain(found: Event, around: ValidationContext) -> RuleResult:
        """Says no."""
        return failed("no", "no")

    module.mentions_units, module.plain, module.refusal = mentions_units, plain, plain  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_rules", module)
    rules = ruleset({"users_rules:mentions_units": {"severity": "soft"}, "users_rules:plain": {}})
    assert named(rules, "mentions_units").severity == "soft"
    assert named(rules, "mentions_units")(event("a\n</think>\n\n5 km"), context()).passed is True
    assert named(rules, "plain")(event("a"), context()).reason == "no"
    with pytest.raises(RecipeError, match="exists already"):
        ruleset({"users_rules:refusal": {}})
