"""What a hostile data set, template or model answer can't do: run code, name a file, stop a run, fill the memory."""

from __future__ import annotations

import ast
import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.sources.ingest import ingest
from dflash_assets.sources.json_lines import MAX_ROW_BYTES
from dflash_assets.tokens.template import ChatTemplate, TemplateFault
from tests.support.patterns import source_files
from tests.support.project import ROOT

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "torch.load",
    "pd.read_pickle",
}
FORBIDDEN_ARGUMENTS = {"trust_remote_code", "allow_pickle", "shell"}


def dangers(source: str) -> list[str]:
    """Imports, calls and keyword arguments that would run what they read."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            found += [name for name in [ast.unparse(node.func)] if name in FORBIDDEN_CALLS]
            given = [word for word in node.keywords if word.arg in FORBIDDEN_ARGUMENTS]
            found += [f"{word.arg}={ast.unparse(word.value)}" for word in given if ast.unparse(word.value) != "False"]
    return found


def test_the_product_never_runs_what_it_reads() -> None:
    files = source_files()
    assert len(files) > 150
    assert any(path.name == "manifest.py" and path.parent.name == "resources" for path in files)
    assert {path.name: found for path in files if (found := dangers(path.read_text()))} == {}


@pytest.mark.parametrize(
    "line", ["import pickle", "from dill import load", "eval(x)", "yaml.load(x)", "f(trust_remote_code=True)", "run(shell=yes)"]
)
def test_the_search_for_dangers_finds_them(line: str) -> None:
    assert dangers(line)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update(role='system') %}",
        "{% for n in range(1000000000) %}x{% endfor %}",
    ],
)
def test_a_template_stays_in_its_sandbox(text: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(TemplateFault):
        ChatTemplate(text, {}, {}).render(messages, None, False)
    assert messages == [{"role": "user", "content": "hello"}]


def test_a_filter_is_no_way_round_the_sandbox() -> None:
    template = ChatTemplate("[{{ messages|attr('__class__') }}]", {}, {})
    assert template.render([{"role": "user", "content": "hello"}], None, False) == "[]"


def test_text_of_a_row_is_never_a_template() -> None:
    attack = "{{ 7 * 7 }}{% for x in y %}{{ ''.__class__ }}"
    template = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {}, {})
    assert template.render([{"role": "user", "content": attack}], None, False) == attack


def read(folder: Path, name: str, data: bytes) -> tuple[int, list[dict[str, object]]]:
    (folder / name).write_bytes(data)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    spec = SourceSpec(name="hostile", format="sharegpt", path=name)
    report = ingest(spec, base_dir=folder, prompts=out / "p.parquet", rejected=out / "r.parquet")
    assert {path.name for path in out.iterdir()} == {"p.parquet", "r.parquet"}
    return report.accepted, pq.read_table(out / "r.parquet").to_pylist()


def a_row(text: str, **fields: object) -> bytes:
    return json.dumps({**fields, "conversations": [{"from": "human", "value": text}]}).encode() + b"\n"


def test_names_in_rows_reach_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    names = ["../../escaped", "/tmp/escaped", "..\\escaped", "a\0b", "C:\\x", "escaped/../../x"]
    rows = b"".join(a_row(f"prompt {n}", id=name, source=name, category=name, path=name) for n, name in enumerate(names))
    accepted, _ = read(folder, "rows.jsonl", rows)
    assert accepted == len(names)
    assert {path.name for path in tmp_path.iterdir()} == {"inner"}
    assert {path.name for path in folder.iterdir()} == {"rows.jsonl", "out"}


@pytest.mark.parametrize("name", ["../x", "a/b", "", "A", "a.b", "x" * 65])
def test_a_source_has_no_name_that_is_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="lower-case letters"):
        SourceSpec.model_validate({"name": name, "format": "sharegpt", "path": "x.jsonl"})


def test_a_gzip_bomb_is_one_rejected_row(tmp_path: Path) -> None:
    size = 4 * MAX_ROW_BYTES
    bomb = gzip.compress(b"[" * (1 << 20)) * (size >> 20)
    data = gzip.compress(a_row("good")) + bomb + gzip.compress(b"\n" + a_row("also good"))
    assert len(data) < size / 500
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted, rejected = read(tmp_path, "bomb.jsonl.gz", data)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert accepted == 2
    assert [row["reason"] for row in rejected] == ["row_too_large"]
    assert grown < 3 * MAX_ROW_BYTES


def test_deep_nesting_is_one_rejected_row(tmp_path: Path) -> None:
    deep = b'{"conversations": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    accepted, rejected = read(tmp_path, "deep.jsonl", a_row("good") + deep + a_row("also good"))
    assert accepted == 2
    assert len(rejected) == 1


SEARCH = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))  # a pattern with exponential steps would take years
from tests.support.patterns import all_patterns, attacks
patterns = all_patterns()
for name, pattern in patterns.items():
    print(name, flush=True)
    for text in attacks(pattern, 1500)[:10]:
        for _ in pattern.finditer(text):
            pass
from dflash_assets.sources.redact import Redactor
for piece in ("cookie:" + " " * 200_000, "cookie:" * 20_000, "cookie: a" * 20_000, "cookie" + " " * 200_000):
    print("redaction of", piece[:10], flush=True)
    Redactor("light").text(piece)
print("searched", len(patterns))
"""


def test_no_pattern_takes_exponential_steps() -> None:
    """Every regular expression on texts made from its own parts; a process's CPU limit is the bound, not a clock."""
    ran = subprocess.run([sys.executable, "-c", SEARCH], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-300:] + ran.stderr[-2000:]
    assert int(ran.stdout.split()[-1]) > 80
