"""A hub on loopback: one dataset repository, by the requests that `huggingface_hub` and `datasets` make, and the ways a hub refuses.

Not here: what the product makes of it (tests/resources/test_hub_http.py). The client reads HF_ENDPOINT when it is imported, so whoever
talks to this hub is a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_only_this_one_is_let_in"
GATED = "Access to dataset {repo} is restricted and you are not in the authorized list."


@dataclass
class Hub:
    """The repository, who may read it, and what was asked."""

    repo: str
    revision: str
    files: Mapping[str, bytes]
    access: str = "open"
    """"open", "gated" (with or without an account: 403 or 401), "private" (looks as if it weren't there), "broken" (500),
    "forbidden" (403 without a reason)."""
    failing: int = 0
    """So many downloads end with 503 before one is served."""
    closes_at: str = ""
    """A path's end: from the request for it on, the repository is gated."""
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def environment(self, home: str, token: str | None = None) -> dict[str, str]:
        """Variables by which a process finds this hub, and nothing of this machine's own."""
        found = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": home,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
        }
        return {**found, **({"HF_TOKEN": token} if token else {})}

    def refusal(self, authorization: str | None) -> tuple[int, dict[str, str]] | None:
        """Status and headers with which this caller is turned away, None for those who are let in."""
        if self.access == "broken":
            return 500, {}
        if self.access == "open" or authorization == f"Bearer {TOKEN}":
            return None
        if self.access == "forbidden":
            return 403, {}
        if self.access == "private":
            return (404 if authorization else 401), {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
        return (403 if authorization else 401), {"X-Error-Code": "GatedRepo", "X-Error-Message": GATED.format(repo=self.repo)}


@contextmanager
def hub(repo: str, revision: str, files: Mapping[str, bytes], **settings: Any) -> Generator[Hub]:
    """Serve a repository on a free port."""
    found = Hub(repo, revision, files, **settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": found}))
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path))
        if self.hub.closes_at and path.endswith(self.hub.closes_at):
            self.hub.access = "gated"
        if (refused := self.hub.refusal(self.headers.get("Authorization"))) is not None:
            return self._send(refused[0], json.dumps({"error": "refused"}).encode(), refused[1])
        repo, revision = self.hub.repo, self.hub.revision
        api = f"/api/datasets/{repo}"
        if path in (api, f"{api}/revision/{revision}", f"{api}/revision/main"):
            return self._json({"id": repo, "sha": revision, "private": False, "siblings": [{"rfilename": name} for name in self.hub.files]})
        if path.startswith(f"{api}/tree/{revision}"):
            under = path.removeprefix(f"{api}/tree/{revision}").strip("/")
            return self._json(self._tree(f"{under}/" if under else "", recursive="recursive=true" in self.path.lower()))
        if path == f"{api}/paths-info/{revision}":
            asked = (
                json.loads(body)["paths"] if body.startswith(b"{") else [part.split("=")[1] for part in unquote(body.decode()).split("&")]
            )
            return self._json([self._info(name) for name in asked if name in self.hub.files])
        name = path.removeprefix(f"/datasets/{repo}/resolve/{revision}/")
        if name in self.hub.files:
            return self._file(name)
        if not path.startswith((api, f"/datasets/{repo}/")):
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        known = revision in path
        return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound" if known else "RevisionNotFound"})

    def _tree(self, under: str, *, recursive: bool) -> list[dict[str, Any]]:
        inside = [name for name in self.hub.files if name.startswith(under)]
        folders = {name.rsplit("/", 1)[0] for name in inside if "/" in name.removeprefix(under)}
        files = [name for name in inside if recursive or "/" not in name.removeprefix(under)]
        return [
            *(
                {"type": "directory", "path": folder, "oid": hashlib.sha1(folder.encode(), usedforsecurity=False).hexdigest()}
                for folder in folders
            ),
            *map(self._info, files),
        ]

    def _info(self, name: str) -> dict[str, Any]:
        data = self.hub.files[name]
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data, usedforsecurity=False).hexdigest()}

    def _file(self, name: str) -> None:
        data = self.hub.files[name]
        headers = {"ETag": f'"{self._info(name)["oid"]}"', "X-Repo-Commit": self.hub.revision, "Accept-Ranges": "bytes"}
        if self.command == "GET" and name != "README.md" and self.hub.failing > 0:
            self.hub.failing -= 1
            return self._send(503, b"busy")
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._send(200, data, headers)
        first, last = wanted.removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last or len(data) - 1), len(data) - 1)
        return self._send(206, data[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(data)}"})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
