"""One secret of each kind is planted wherever a run takes something in; then every byte the run left anywhere is searched.

Planted: in texts, tool schemas, arguments, headers and damaged rows of data sets; in the environment (the servers' key, cloud and hub
credentials, a webhook's and a proxy's address, a database password that is nobody's business); in what a server says when it fails.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import sqlite3
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.guarded import guarded
from tests.support.project import Project, make_project, recipe_data, simulator

SERVER_KEY = "plantedserverkey" + "4f7a1c9e" * 4
# Put together here, so that no scanner of repositories takes a test's invention for somebody's credential.
IN_ROWS = {
    "api_key": "sk-" + "proj-Ab3dEf6hIj9kLm2nOp5qRs8t",
    "anthropic_key": "sk-" + "ant-Zy7xWv4uTs1rQp8oNm5l",
    "google_key": "AI" + "zaSyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "aws_key": "AK" + "IAQ3EGRZ7XPLANTED1"[:18],
    "github_token": "gh" + "p_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8",
    "slack_token": "xo" + "xb-4815162342-plantedTOKEN99",
    "huggingface_token": "hf" + "_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123",
    "nvidia_key": "nv" + "api-P1antedP1antedP1antedP1anted",
    "stripe_key": "sk" + "_live_4eC39HqLyjWDarjtPLANTED",
    "gitlab_token": "gl" + "pat-Xy7Zw5Vu3Ts1Rq9Po7Nm",
    "jwt": "ey" + "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.SflKxwRJSMeKKF2QT4fwpMeJf36P",
    "bearer": "b34r3r" + "PlantedTokenValue0123456789",
    "cookie": "planted" + "c00kievalue0123456789",
    "header": "planted-header-" + "key-0123456789",
    "url_password": "p1antedUrlPassw0rd",
    "email": "jane.planted@" + "corp-planted.io",
    "card": "4532 0151 " + "1283 0366",
    "password": "P1anted-Hunter2!",
    "private_key": "MIIEplantedKEYMATERIALxyz0123456789abcdefghijklmnopqrstuvwxyzABCD",
}
IN_ENVIRONMENT = {
    "SERVER_KEY": SERVER_KEY,
    "AWS_ACCESS_KEY_ID": "AK" + "IAENVIRONPLANTED",
    "AWS_SECRET_ACCESS_KEY": "environmentAwsSecret/" + "0123456789abcdefghi",
    "HF_TOKEN": "hf" + "_environmentPLANTEDtoken0123456789",
    "OPENAI_API_KEY": "sk-" + "environmentPLANTED0123456789",
    "DATABASE_URL": "postgresql://app:environmentDbPassw0rd@db/x",
    "HTTPS_PROXY": "http://worker:environmentProxyPassw0rd@127.0.0.1:9",
    "DFLASH_ALERT_WEBHOOK": "http://127.0.0.1:9/services/environmentWebhookToken",
}
MARKS_IN_URLS = {
    "DATABASE_URL": "environmentDbPassw0rd",
    "HTTPS_PROXY": "environmentProxyPassw0rd",
    "DFLASH_ALERT_WEBHOOK": "environmentWebhookToken",
}


def sentence(kind: str, value: str) -> str:
    return {
        "bearer": f"curl -H 'Authorization: Bearer {value}'",
        "cookie": f"Cookie: session={value}",
        "header": f"x-api-key: {value}",
        "url_password": f"clone https://app:{value}@git.corp/x.git",
        "password": f"the password is {value}",
        "private_key": f"-----BEGIN RSA PRIVATE KEY-----\n{value}\n-----END RSA PRIVATE KEY-----",
    }.get(kind, f"my value {value} please")


def tool(value: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"token": {"type": "string", "default": value, "description": f"e.g. {value}"}}}
    return {"type": "function", "function": {"name": "call_api", "description": f"uses {value}", "parameters": schema}}


def plant(project: Project) -> None:
    """Every kind in a chat row, a damaged row, a row of the wrong type, a logged request's headers, body, schema and arguments."""
    chat, logged = [], []
    for kind, value in IN_ROWS.items():
        said = sentence(kind, value)
        chat.append(json.dumps({"id": f"row {said}", "conversations": [{"from": "human", "value": f"Explain what {kind} is: {said}"}]}))
        chat.append(json.dumps({"id": kind, "conversations": [{"from": "human", "value": None}, {"from": "gpt", "value": said}]}))
        chat.append(json.dumps({"id": kind, "conversations": f"{said}"}))
        chat.append(json.dumps({"id": kind, "conversations": [{"from": said, "value": "hello"}]}))
        chat.append('{"id": "torn", "conversations": [{"from": "human", "value": ' + json.dumps(said)[:-1])
        arguments = {"id": "c1", "type": "function", "function": {"name": "call_api", "arguments": json.dumps({"token": said})}}
        messages = [
            {"role": "system", "content": f"Use {said}"},
            {"role": "user", "content": f"Call it for {kind}: {said}"},
            {"role": "assistant", "content": None, "tool_calls": [arguments]},
            {"role": "tool", "tool_call_id": "c1", "content": json.dumps({"result": said})},
            {"role": "user", "content": "And again."},
        ]
        headers = {"Authorization": f"Bearer {value}", "Cookie": f"session={value}", "X-Api-Key": value, "X-Internal-Thing": value}
        body = {"model": "m", "messages": messages, "tools": [tool(said)]}
        logged.append(json.dumps({"method": "POST", "path": "/v1/chat/completions", "headers": headers, "body": body}))
        logged.append(json.dumps({"method": "GET", "path": f"/v1/models?key={value}", "headers": headers, "body": None}))
        logged.append(json.dumps({"method": "POST", "path": "/v1/chat/completions", "headers": headers, "body": said}))
    (project.folder / "chat.jsonl").write_text("\n".join(chat) + "\n")
    (project.folder / "logged.jsonl").write_text("\n".join(logged) + "\n")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, str]]:
    """A finished run, its reports and views, and everything its commands printed."""
    with (
        simulator("--mean-tokens", "15") as server,
        guarded(server, SERVER_KEY, refuse_every=5) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in IN_ENVIRONMENT.items():
            patch.setenv(name, value)
        engine = {"kind": "sglang", "servers": [{"url": url}], "api_key_env": "SERVER_KEY"}
        recipe = recipe_data(engine, prompts=40, shard_size=20)
        recipe["sources"].append({"name": "logged", "format": "http", "path": "logged.jsonl", "redaction": "strict"})
        recipe["sources"][0]["redaction"] = "strict"
        recipe["blend"]["max_prompt_tokens"] = 1024
        project = make_project(tmp_path_factory.mktemp("planted"), recipe)
        plant(project)
        said = ""
        commands = [("run", "r.yaml"), ("report", "r.yaml"), ("peek", "r.yaml", "--rejected", "body_not_json")]
        commands += [("peek", "r.yaml", "--source", "logged", "-n", "20")]
        for command in commands:
            ran = project.command(*command)
            said += f"$ {command}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        assert "('run', 'r.yaml'): 0" in said, said
        patch.setenv("SERVER_KEY", SERVER_KEY + "-wrong")
        project.write({**recipe, "name": "refused", "store": "data/refused"})
        refused = project.command("run", "r.yaml")
        assert refused.returncode == 1
        assert "Incorrect API key provided" in refused.stderr, refused.stderr
        yield project, said + refused.stdout + refused.stderr


def planted() -> dict[str, str]:
    """Marker by name; of a URL only its password."""
    environment = {**IN_ENVIRONMENT, **MARKS_IN_URLS}
    return {**{f"row {kind}": value for kind, value in IN_ROWS.items()}, **{f"env {name}": value for name, value in environment.items()}}


def texts(path: Path) -> Iterator[bytes]:
    """A file's bytes, and what stands in it once it is unpacked or read as what it is."""
    data = path.read_bytes()
    yield data
    if data[:4] == b"PAR1":
        table = pq.read_table(pa.BufferReader(data))
        yield repr(table.schema.metadata).encode() + json.dumps(table.to_pylist(), default=str).encode()
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path)) as file:
            yield json.dumps(pa.ipc.open_stream(file).read_all().to_pylist(), default=str).encode()
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    elif data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    elif data[:15] == b"SQLite format 3":
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
            yield "\n".join(base.iterdump()).encode()
    elif path.parent.name == "journal" or path.suffix == ".journal":
        yield from unpacked(data)


def unpacked(data: bytes) -> Iterator[bytes]:
    """Compressed runs inside a binary file, zstd and zlib, wherever they begin."""
    import zstandard

    for magic, unpack in ((b"\x28\xb5\x2f\xfd", lambda part: zstandard.ZstdDecompressor().decompressobj().decompress(part)),):
        start = data.find(magic)
        while start >= 0:
            yield unpack(data[start:])
            start = data.find(magic, start + 4)
    if data[:1] == b"\x78":
        yield zlib.decompressobj().decompress(data)


def forms(value: str) -> list[bytes]:
    """The value as it is, escaped in JSON, and in base64 at each of the three offsets."""
    plain = value.encode()
    coded = [base64.b64encode(b"x" * offset + plain)[4 if offset else 0 : -4] for offset in range(3)]
    return [plain, json.dumps(value)[1:-1].encode(), *coded]


def test_nothing_the_run_left_holds_a_planted_secret(searched: tuple[Project, str]) -> None:
    project, said = searched
    inputs = {project.folder / name for name in ("chat.jsonl", "logged.jsonl", "maths.jsonl")}
    files = [path for path in project.folder.rglob("*") if path.is_file() and not path.is_symlink() and path not in inputs]
    found = [f"printed: {name}" for name, value in planted().items() if any(form in said.encode() for form in forms(value))]
    for path in files:
        for text in texts(path):
            found += [
                f"{path.relative_to(project.folder)}: {name}" for name, value in planted().items() if any(f in text for f in forms(value))
            ]
    assert not sorted(set(found))
    kinds = {path.suffix for path in files}
    assert {".parquet", ".json", ".html", ".md", ".db"} <= kinds, kinds


def test_the_run_had_them_all_in_its_hands(searched: tuple[Project, str]) -> None:
    """Without this the search above could pass because nothing was read: rows were kept, redacted and rejected, requests failed and were sent again."""
    project, _ = searched
    counts: dict[str, int] = {}
    for name in ("chat", "logged"):
        entry = project.manifest()[f"source/{name}"]
        assert entry["facts"]["accepted"] >= len(IN_ROWS)
        rejected = pq.read_table(project.store / entry["files"][1]["path"]).num_rows
        assert rejected >= len(IN_ROWS)
        for path in entry["files"]:
            text = json.dumps(pq.read_table(project.store / path["path"]).to_pylist(), default=str)
            for kind in ("api_key", "aws_key", "github_token", "jwt", "private_key", "email", "card_number", "password", "cookie"):
                counts[kind] = counts.get(kind, 0) + text.count(f"[REDACTED:{kind}]")
    assert not [kind for kind, count in counts.items() if count == 0]
    attempts = [
        row["attempts"]
        for name, entry in project.manifest().items()
        if name.startswith("completions/")
        for row in pq.read_table(project.store / entry["files"][0]["path"]).to_pylist()
    ]
    assert max(attempts) > 1


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    marker = IN_ROWS["api_key"]
    for name, data in {
        "a.txt": marker.encode(),
        "b.gz": gzip.compress(marker.encode()),
        "c.txt": base64.b64encode(b"y" + marker.encode()),
    }.items():
        (tmp_path / name).write_bytes(data)
    pq.write_table(pa.table({"x": [marker]}), tmp_path / "d.parquet", compression="zstd")
    with sqlite3.connect(tmp_path / "e.db") as base:
        base.execute("create table t (x text)")
        base.execute("insert into t values (?)", (marker,))
    for path in tmp_path.iterdir():
        assert any(form in text for text in texts(path) for form in forms(marker)), path.name
