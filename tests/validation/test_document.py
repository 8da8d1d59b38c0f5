"""docs/rules.md says what the rules say."""

import pytest

from dflash_assets.validation.document import page
from dflash_assets.validation.rules import BUILTIN
from dflash_assets.validation.set_rules import BUILTIN_SET
from tests.support.project import ROOT

RULES = [*BUILTIN.values(), *BUILTIN_SET.values()]


def test_the_page_is_current() -> None:
    current = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert current == page(), "run: python -m dflash_assets.validation.document > docs/rules.md"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_and_parameter_is_described(rule) -> None:  # type: ignore[no-untyped-def]
    assert len(rule.doc) > 30
    for name, field in rule.parameters.model_fields.items():
        assert len(field.description or "") > 10, name
        assert f"| `{name}` |" in page()
