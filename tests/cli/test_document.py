"""docs/cli.md says what the commands say."""

import re

from typer.testing import CliRunner

from dflash_assets.cli.document import commands, page, parameters
from dflash_assets.cli.main import app
from tests.support.project import ROOT


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page(), "run: python -m dflash_assets.cli.document > docs/cli.md"


def test_every_command_has_a_section_and_every_parameter_a_meaning() -> None:
    text = page()
    assert len(commands()) >= 9
    for name, command in commands().items():
        [section] = re.findall(rf"^## `{name}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        for parameter in parameters(command):
            assert len(parameter.info.help or "") > 10, (name, parameter.name)
            label = parameter.label.replace("|", "\\|")
            assert f"| `{label}` |" in section, (name, parameter.name)


def test_flags_are_those_of_help() -> None:
    """What is read from signatures is what the parser knows."""
    for name, command in commands().items():
        shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"}).stdout
        for parameter in parameters(command):
            words = [parameter.name.upper()] if parameter.is_argument else re.findall(r"--?[a-z][a-z-]*", parameter.label)
            assert words, (name, parameter.name)
            for word in words:
                assert re.search(rf"(?<![\w-]){word}(?![\w-])", shown, re.IGNORECASE), (name, word)
