"""TLS to servers: verified always, authorities and client certificates from the recipe, keys never in a message."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_assets.recipe.generation import SglangEngine as SglangSpec
from dflash_assets.resources.engines.base import EngineError
from dflash_assets.resources.engines.http import HttpServer
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.engines.tls import TlsFiles
from tests.support.guarded import certificates, guarded
from tests.support.simulated import simulated

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by the openssl command")
KEY = "planted-server-key-4711"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    certificates(folder)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with simulated() as (url, _):
        yield url


def context(made: Path, *, asks: bool = False) -> ssl.SSLContext:
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    found.load_cert_chain(made / "server.pem", made / "server.key")
    if asks:
        found.load_verify_locations(made / "ca.pem")
        found.verify_mode = ssl.CERT_REQUIRED
    return found


def version(url: str, tls: TlsFiles | None, key: str | None = None) -> str:
    async def ask() -> str:
        engine = SglangEngine(url, api_key_env=key, tls=tls)
        try:
            return (await engine.start()).engine
        finally:
            await engine.close()

    return asyncio.run(ask())


def test_an_authority_of_the_recipe_is_believed(made: Path, server: str) -> None:
    with guarded(server, None, context(made)) as url:
        assert version(url, TlsFiles(made / "ca.pem")) == "sglang"


def test_an_unknown_authority_and_another_host_are_not(made: Path, server: str) -> None:
    with guarded(server, None, context(made)) as url:
        with pytest.raises(EngineError, match="certificate verify failed"):
            version(url, None)
        with pytest.raises(EngineError, match="certificate verify failed"):
            version(url.replace("127.0.0.1", "localhost"), TlsFiles(made / "ca.pem"))


def test_a_client_certificate_is_shown(made: Path, server: str) -> None:
    with guarded(server, None, context(made, asks=True)) as url:
        assert version(url, TlsFiles(made / "ca.pem", made / "client.pem", made / "client.key")) == "sglang"
        with pytest.raises(EngineError) as refused:
            version(url, TlsFiles(made / "ca.pem"))
        assert refused.value.kind == "disconnected"


def test_files_that_cant_be_used_are_named(made: Path, tmp_path: Path) -> None:
    where = "https://127.0.0.1:9"
    (tmp_path / "text.pem").write_text("no certificate")
    with pytest.raises(EngineError, match=r"nothing\.pem: no such file"):
        version(where, TlsFiles(tmp_path / "nothing.pem"))
    with pytest.raises(EngineError, match=r"text\.pem holds no certificate authority"):
        version(where, TlsFiles(tmp_path / "text.pem"))
    with pytest.raises(EngineError, match=r"client\.pem with the key in .*server\.key can't be used"):
        version(where, TlsFiles(made / "ca.pem", made / "client.pem", made / "server.key"))
    locked = ["openssl", "ec", "-aes128", "-passout", "pass:word", "-in", str(made / "client.key"), "-out", str(tmp_path / "locked.key")]
    subprocess.run(locked, check=True, capture_output=True)
    with pytest.raises(EngineError, match="the key is encrypted"):
        version(where, TlsFiles(made / "ca.pem", made / "client.pem", tmp_path / "locked.key"))


def test_a_key_quoted_by_the_server_is_masked(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)

    async def texts(url: str) -> list[str]:
        client = HttpServer(url, "SERVER_KEY")
        await client.open()
        said: list[str] = []
        for _ in range(2):
            with pytest.raises(EngineError) as raised:
                await client.post("/generate", {}, 10.0)
            said += [str(raised.value), str(raised.value.snippet), repr(raised.value.__context__)]
        await client.close()
        return said

    with guarded(server, KEY, refuse_every=1) as url:
        said = asyncio.run(texts(url))
    assert "status 500" in said[0]
    assert "error object" in said[3]
    assert all("upstream failed for Bearer ***" in text for text in (said[0], said[3]))
    assert not [text for text in said if KEY in text]
    with guarded(server, "another-key", refuse_every=1) as url, pytest.raises(EngineError) as refused:
        version(url, None, "SERVER_KEY")
    assert refused.value.kind == "unauthorised"
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"servers": [{"url": "https://me:planted@host:1"}]}, "doesn't belong in a recipe"),
        ({"router": {"url": "http://me:planted@host:1"}}, "doesn't belong in a recipe"),
        ({"tls": {"ca_file": "ca.pem"}}, "every server needs an https"),
        (
            {"servers": [{"url": "https://host"}], "router": {"url": "http://host:1"}, "tls": {"ca_file": "ca.pem"}},
            "every server needs an https",
        ),
        ({"servers": [{"url": "https://host"}], "tls": {"key": "a.key"}}, "key without certificate"),
    ],
)
def test_recipes_that_would_leak_or_not_be_used(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SglangSpec.model_validate({"kind": "sglang", "servers": [{"url": "http://host:1"}], **change})
