"""S3 servers for tests: moto in this process, a real one named by the environment, and a proxy that makes either misbehave."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_lease import Lease
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.store import Owner, StoreOptions

NAMES = (
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_REGION",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_EC2_METADATA_DISABLED",
)


@dataclass(frozen=True)
class Server:
    """A running server, its keys, and a bucket of this test's own."""

    kind: str
    endpoint: str
    key: str
    secret: str
    bucket: str

    def environment(self, **changes: str) -> dict[str, str]:
        """The variables by which boto3 finds it, nothing of this machine's own among them."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "AWS_EC2_METADATA_DISABLED": "true",
            **changes,
        }

    def use(self, patch: pytest.MonkeyPatch, **changes: str) -> None:
        """Make it the S3 of this process."""
        for name in NAMES:
            patch.delenv(name, raising=False)
        for name, value in self.environment(**changes).items():
            patch.setenv(name, value)

    def client(self) -> Any:
        """A plain boto3 client with all rights: the tests' own eyes and hands."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
        )

    def url(self, prefix: str = "") -> str:
        """Address of a prefix in the bucket."""
        return f"s3://{self.bucket}/{prefix}"

    def keys(self, prefix: str = "") -> list[str]:
        """Keys under a prefix."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Everything under a prefix, by key. What is removed between the listing and its turn to be read was not there."""
        client, found = self.client(), dict[str, bytes]()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
            for item in page.get("Contents", []):
                with contextlib.suppress(client.exceptions.NoSuchKey):
                    found[item["Key"]] = client.get_object(Bucket=self.bucket, Key=item["Key"])["Body"].read()
        return found


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    """A moto server on a free port; it checks neither signatures nor rights."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield fresh(Server("moto", f"http://{host}:{port}", "key", "secret", ""))
    finally:
        server.stop()


def real() -> Server:
    """The server of `make test-s3`; skips without one."""
    endpoint = os.environ.get("DFLASH_S3_ENDPOINT")
    if not endpoint:
        pytest.skip("needs a real S3 server: run `make test-s3`, or set DFLASH_S3_ENDPOINT, _ACCESS_KEY and _SECRET_KEY")
    return fresh(Server("real", endpoint, os.environ["DFLASH_S3_ACCESS_KEY"], os.environ["DFLASH_S3_SECRET_KEY"], ""))


def fresh(server: Server) -> Server:
    """The same server with a new, empty bucket."""
    made = Server(server.kind, server.endpoint, server.key, server.secret, f"test-{uuid.uuid4().hex[:12]}")
    made.client().create_bucket(Bucket=made.bucket)
    return made


def open_s3(url: str, folder: Path, *, owner: Owner | None = None, ttl: float = 60.0, beat: float = 10.0, **options: Any) -> S3Store:
    """A store of its own (not the process's shared one), with a working copy in `folder`."""
    owner = owner or Owner("test")
    store = S3Store(url, owner, StoreOptions(work=str(folder), **options))
    if (ttl, beat) != (60.0, 10.0):
        lease = Lease(Bucket(url), f"{store.working_copy.id}@test", ttl=ttl, beat=beat, settle=0.2)
        store = S3Store(url, owner, StoreOptions(work=str(folder), **options), lease=lease)
    return store


@dataclass
class Proxy:
    """Passes HTTP on to a server, except where `fault` says otherwise."""

    target: tuple[str, int]
    fault: Callable[[str, str], tuple[Any, ...] | None] = lambda method, path: None
    """(method, path) to None (pass on), ("status", 503, "SlowDown"), ("cut", bytes of the body passed on), ("unconditional",):
    drop If-Match and If-None-Match, ("cut_answer", bytes of the answer's body passed back), ("deaf",): let the server do it and lose
    its answer, or ("refuse",): close the connection."""
    seen: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def __post_init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """Accept nothing more."""
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            upstream = socket.create_connection(self.target)
        except OSError:
            client.close()
            return
        threading.Thread(target=_relay, args=(upstream, client), daemon=True).start()
        with contextlib.suppress(OSError):
            self._requests(client, upstream)
        _end(client, upstream)

    def _requests(self, client: socket.socket, upstream: socket.socket) -> None:
        waiting = b""
        while True:
            while b"\r\n\r\n" not in waiting:
                data = client.recv(65536)
                if not data:
                    return
                waiting += data
            head, waiting = waiting.split(b"\r\n\r\n", 1)
            lines = head.split(b"\r\n")
            method, path = lines[0].decode().split(" ")[:2]
            headers = {line.split(b":", 1)[0].lower(): line.split(b":", 1)[1].strip() for line in lines[1:]}
            length = int(headers.get(b"content-length", b"0"))
            self.seen.append((method, path))
            fault = self.fault(method, path)
            limit = length
            if fault is not None and fault[0] == "refuse":
                return
            if fault is not None and fault[0] == "status":
                body = f"<?xml version='1.0'?><Error><Code>{fault[2]}</Code><Message>secret-in-message</Message></Error>".encode()
                client.sendall(
                    b"HTTP/1.1 %d Fault\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                    % (fault[1], len(body))
                    + body
                )
                return
            if fault is not None and fault[0] == "unconditional":
                lines = [line for line in lines if line.split(b":", 1)[0].lower() not in (b"if-match", b"if-none-match")]
                head = b"\r\n".join(lines)
            if fault is not None and fault[0] == "deaf":
                self._done_in_vain(client, head, waiting, length)
                return
            if fault is not None and fault[0] == "cut_answer":
                self._half_an_answer(client, head, waiting, int(fault[1]))
                return
            if fault is not None and fault[0] == "cut":
                limit = min(length, int(fault[1]))
            upstream.sendall(head + b"\r\n\r\n")
            sent = 0
            while sent < limit:
                if not waiting:
                    waiting = client.recv(65536)
                    if not waiting:
                        return
                part, waiting = waiting[: limit - sent], waiting[limit - sent :]
                upstream.sendall(part)
                sent += len(part)
            if limit < length:
                return

    def _done_in_vain(self, client: socket.socket, head: bytes, waiting: bytes, length: int) -> None:
        """The server does what is asked, over a connection of its own, and nobody hears of it."""
        while len(waiting) < length:
            data = client.recv(65536)
            if not data:
                return
            waiting += data
        with socket.create_connection(self.target) as own:
            own.sendall(head + b"\r\n\r\n" + waiting[:length])
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += own.recv(65536)

    def _half_an_answer(self, client: socket.socket, head: bytes, body: bytes, size: int) -> None:
        """The headers of what the server says and `size` bytes of its body, then nothing more."""
        with socket.create_connection(self.target) as own:
            own.sendall(head + b"\r\n\r\n" + body)
            answer = b""
            while len(answer.partition(b"\r\n\r\n")[2]) < size and (data := own.recv(65536)):
                answer += data
        top, end, rest = answer.partition(b"\r\n\r\n")
        client.sendall(top + end + rest[:size])

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _relay(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _end(source, target)


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):  # closing alone wouldn't wake a thread that reads from it
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def proxied(server: Server) -> Proxy:
    """A proxy before a server."""
    host, port = server.endpoint.removeprefix("http://").split(":")
    return Proxy((host, int(port)))


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something to become true; fails the test when it doesn't."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
