"""Secrets to plant, one of each kind, and the search for them in every byte a run left.

Here: the values, planting them in data sets, reading files of every kind. Not here: the runs that are searched (tests/security, tests/s3).
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import sqlite3
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.project import Project, recipe_data

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
    elif "journal" in path.parts or path.suffix == ".journal":
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


def planted_recipe(url: str, **changes: Any) -> dict[str, Any]:
    """A recipe that reads what `plant` wrote, answered by the server at `url`, which wants SERVER_KEY."""
    recipe = recipe_data({"kind": "sglang", "servers": [{"url": url}], "api_key_env": "SERVER_KEY"}, prompts=40, shard_size=20, **changes)
    recipe["sources"].append({"name": "logged", "format": "http", "path": "logged.jsonl", "redaction": "strict"})
    recipe["sources"][0]["redaction"] = "strict"
    recipe["blend"]["max_prompt_tokens"] = 1024
    return recipe


def found_in_text(said: str, secrets: dict[str, str]) -> list[str]:
    """Names of the secrets that a printed text holds."""
    return [name for name, value in secrets.items() if any(form in said.encode() for form in forms(value))]


def found_in_files(folder: Path, files: Iterable[Path], secrets: dict[str, str]) -> list[str]:
    """`file: name` of each secret that stands in a file, packed or not."""
    coded = {name: forms(value) for name, value in secrets.items()}
    found = {
        f"{path.relative_to(folder)}: {name}"
        for path in files
        for text in texts(path)
        for name, known in coded.items()
        if any(form in text for form in known)
    }
    return sorted(found)


INPUTS = ("chat.jsonl", "logged.jsonl", "maths.jsonl")
"""Files of a project that hold planted secrets because they are what it reads."""


def left_by(project: Project) -> list[Path]:
    """All files in the project's folder but its inputs."""
    inputs = {project.folder / name for name in INPUTS}
    return [path for path in project.folder.rglob("*") if path.is_file() and not path.is_symlink() and path not in inputs]
