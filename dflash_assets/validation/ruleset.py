"""The rules of one recipe: built-in ones and the user's own, with severities, limits and parameters settled.

Here: choosing, naming and checking rules. Not here: the rules (`rules/`, `set_rules.py`) and running them (`validate.py`).
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import ValidationError

from dflash_assets.errors import RecipeError
from dflash_assets.recipe.base import RecipeModel
from dflash_assets.recipe.validation import RuleSettings, ValidationSpec
from dflash_assets.tables import canonical_json, digest
from dflash_assets.validation.event import Event, ValidationContext
from dflash_assets.validation.rules import BUILTIN
from dflash_assets.validation.rules.base import NoParameters, Rule, RuleResult, Severity
from dflash_assets.validation.set_rules import BUILTIN_SET, Expectations, SetResult, SetRule
from dflash_assets.validation.tally import Tally


@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule with its settings."""

    name: str
    severity: Severity
    limit: float | None
    doc: str
    parameters: RecipeModel
    check: Callable[[Event, ValidationContext, Any], RuleResult]

    def __call__(self, event: Event, context: ValidationContext) -> RuleResult:
        return self.check(event, context, self.parameters)


@dataclass(frozen=True, slots=True)
class BoundSetRule:
    """A set rule with its settings."""

    name: str
    severity: Severity
    limit: float | None
    doc: str
    parameters: RecipeModel
    check: Callable[[Tally, Expectations, Any, float | None], SetResult]

    def __call__(self, tally: Tally, expectations: Expectations) -> SetResult:
        return self.check(tally, expectations, self.parameters, self.limit)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules that run, in the order of the report."""

    rules: tuple[BoundRule, ...]
    set_rules: tuple[BoundSetRule, ...]
    confidence: float = 0.95

    @classmethod
    def from_spec(cls, spec: ValidationSpec, *, on_length: Literal["keep_open", "drop"] = "drop") -> RuleSet:
        """Settle the rules of a recipe.

        `on_length` is `generation.on_length`: with `keep_open` an answer cut at the limit is wanted, so `finish_reason`
        lets `length` pass and `truncation_share` counts it. Raises RecipeError for an unknown rule (with the nearest
        name), an unknown parameter, or an import path that leads to no rule.
        """
        known: dict[str, Rule[Any] | SetRule[Any]] = {**BUILTIN, **BUILTIN_SET}
        chosen = dict(known)
        settings: dict[str, RuleSettings] = {}
        for name, given in spec.rules.items():
            where = f"validation.rules.{name}"
            if name not in known:
                found = _imported(name, where, list(known))
                if found.name in chosen:
                    raise RecipeError(f"a rule named {found.name!r} exists already", where=where, todo="rename yours")
                chosen[found.name] = found
                settings[found.name] = given
            else:
                settings[name] = given
        rules: list[BoundRule] = []
        set_rules: list[BoundSetRule] = []
        for name, rule in chosen.items():
            given = settings.get(name, RuleSettings())
            if not given.enabled:
                continue
            values = dict(given.parameters)
            if name == "finish_reason" and on_length == "keep_open" and "allowed" not in values:
                values["allowed"] = ("stop", "tool_calls", "length")
            parameters = _parameters(rule, values)
            severity = given.severity or rule.severity
            limit = rule.max_failed_share if given.max_failed_share is None else given.max_failed_share
            if isinstance(rule, SetRule):
                set_rules.append(BoundSetRule(name, severity, limit, rule.doc, parameters, rule.check))
            else:
                rules.append(BoundRule(name, severity, limit, rule.doc, parameters, rule.check))
        return cls(tuple(rules), tuple(set_rules), spec.confidence)

    def fingerprint(self) -> str:
        """Hash of names, severities, limits and parameters: changes exactly when verdicts may."""
        return digest(
            canonical_json(
                [[rule.name, rule.severity, rule.limit, rule.parameters.model_dump(mode="json")] for rule in (*self.rules, *self.set_rules)]
            )
        )


def _parameters(rule: Rule[Any] | SetRule[Any], values: dict[str, Any]) -> RecipeModel:
    try:
        return rule.parameters.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        fields = list(rule.parameters.model_fields)
        todo = f"parameters of {rule.name}: {', '.join(fields) or 'none'}"
        if first["type"] == "extra_forbidden" and (near := difflib.get_close_matches(name, fields, 1)):
            todo = f"did you mean {near[0]!r}? {todo}"
        raise RecipeError(first["msg"], where=f"validation.rules.{rule.name}.parameters.{name}", todo=todo) from None


def _imported(path: str, where: str, known: list[str]) -> Rule[Any] | SetRule[Any]:
    module_name, colon, attribute = path.partition(":")
    if not colon:
        near = difflib.get_close_matches(path, known, 1, cutoff=0.5)
        todo = f"did you mean {near[0]!r}?" if near else f"built-in rules: {', '.join(known)}"
        raise RecipeError(f"no rule is named {path!r}", where=where, todo=f"{todo} A rule of your own is `package.module:rule`.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RecipeError(f"can't import {module_name!r}: {error}", where=where, todo="install it, or correct the import path") from error
    found = getattr(module, attribute, None)
    if isinstance(found, (Rule, SetRule)):
        return cast("Rule[Any] | SetRule[Any]", found)
    if callable(found):
        function = cast(Callable[[Event, ValidationContext], RuleResult], found)

        def check(event: Event, context: ValidationContext, parameters: NoParameters) -> RuleResult:
            return function(event, context)

        return Rule(attribute, "soft", None, NoParameters, check, (found.__doc__ or "").strip())
    what = "is missing" if found is None else f"is {type(found).__name__}"
    raise RecipeError(
        f"{attribute!r} in {module_name!r} {what}, not a rule",
        where=where,
        todo="decorate a function with dflash_assets.validation.rules.base.rule",
    )
