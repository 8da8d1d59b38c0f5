"""Reader `http`: logged HTTP requests to a chat API, or bare request bodies, of three APIs told apart by themselves.

Here: unwrapping a log record (headers are dropped, all of them) and choosing the API. Not here: the bodies
(`openai_chat`, `openai_responses`, `anthropic_messages`) and logs that pair requests with responses (`wildclaw`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

from dflash_assets.sources.anthropic_messages import draft_of_anthropic
from dflash_assets.sources.literals import NotPlain, parse_json
from dflash_assets.sources.openai_chat import draft_of_chat
from dflash_assets.sources.openai_responses import draft_of_responses
from dflash_assets.sources.reader import ReaderOptions, RowReader
from dflash_assets.sources.records import Draft, RowFault

Api = Literal["openai_chat", "openai_responses", "anthropic"]
_DRAFTS: dict[Api, Callable[[dict[str, Any]], Draft]] = {
    "openai_chat": draft_of_chat,
    "openai_responses": draft_of_responses,
    "anthropic": draft_of_anthropic,
}
_ENDINGS: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", "openai_chat"),
    ("/responses", "openai_responses"),
    ("/messages", "anthropic"),
    (":rawPredict", "anthropic"),
    ("/invoke", "anthropic"),
)


class HttpOptions(ReaderOptions):
    """How logged requests are read."""

    api: Literal["auto", "openai_chat", "openai_responses", "anthropic"] = "auto"
    """API of the bodies; `auto` goes by path and, without one, by the body's keys."""


class HttpReader(RowReader):
    """Records `{method, url|path, headers, body}`, OpenClaw's `{header, body}`, or bare bodies."""

    options_model = HttpOptions
    options: HttpOptions

    @property
    def columns(self) -> tuple[str, ...]:
        """A body, wrapped or bare."""
        return ("body, or messages or input of a bare body",)

    def draft(self, value: dict[str, Any]) -> Draft:
        """Draft of one record; raises RowFault."""
        return request_draft(value, self.options.api)


def request_draft(record: dict[str, Any], api: Literal["auto"] | Api = "auto") -> Draft:
    """Draft of a logged request or a bare body. Raises RowFault: not_a_chat_request, body_not_json and those of the bodies."""
    flags: set[str] = set()
    body: Any = record
    path: str | None = None
    if "body" in record and "messages" not in record:
        body = record["body"]
        address = record.get("path") or record.get("url")
        path = _path(address) if isinstance(address, str) and address else None
        headers = record.get("headers", record.get("header"))
        if isinstance(headers, dict) and any(str(name).lower() != "content-type" for name in headers):
            flags.add("headers_dropped")
        if str(record.get("method") or "POST").upper() != "POST" or body in (None, ""):
            raise RowFault("not_a_chat_request", "no POST request with a body")
        if isinstance(body, str):
            try:
                body, changes = parse_json(body)
            except NotPlain as error:
                raise RowFault("body_not_json", f"the body is text, but no JSON: {error}") from None
            flags.update(changes)
    if not isinstance(body, dict):
        raise RowFault("body_not_json", f"the body is a {type(body).__name__}, not an object")
    draft = _DRAFTS[_api(body, path) if api == "auto" else api](body)
    draft.flags |= flags
    return draft


def _path(address: str) -> str:
    try:
        return urlsplit(address).path
    except ValueError:  # a broken IPv6 host and the like
        return address


def _api(body: dict[str, Any], path: str | None) -> Api:
    for ending, api in _ENDINGS:
        if path is not None and path.rstrip("/").endswith(ending):
            return api
    if isinstance(body.get("messages"), list):
        return "anthropic" if _speaks_anthropic(body) else "openai_chat"
    if path is None and ("input" in body or "previous_response_id" in body):
        return "openai_responses"
    if path is not None:
        raise RowFault("not_a_chat_request", "the path is none of chat completions, responses or messages")
    raise RowFault("schema_mismatch", f"neither messages nor input; the body has {', '.join(sorted(map(str, body)))[:200] or 'no keys'}")


def _speaks_anthropic(body: dict[str, Any]) -> bool:
    tools = body.get("tools")
    if "system" in body or "anthropic_version" in body:
        return True
    if isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools):
        return True
    blocks = (
        block
        for message in body["messages"]
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for block in message["content"]
    )
    return any(isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result") for block in blocks)
