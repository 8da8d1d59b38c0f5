"""A client for S3 and servers that speak it, and what its errors mean.

Here: credentials and endpoint (the standard chain of boto3: environment, profile, instance role, AWS_ENDPOINT_URL), time
limits, and one class of error whose text never holds a secret. Not here: what is read and written (`s3_bucket.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

from dflash_assets.resources.manifest import StoreFault

Kind = Literal["credentials", "denied", "no_bucket", "clock", "busy", "unreachable", "missing", "exists", "other"]
PASSING: frozenset[str] = frozenset({"busy", "unreachable"})
"""Kinds that go away by themselves."""
CONNECT_SECONDS, READ_SECONDS = 5, 30
ATTEMPTS = 4

_CODES: dict[str, Kind] = {
    "InvalidAccessKeyId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "ExpiredToken": "credentials",
    "InvalidToken": "credentials",
    "TokenRefreshRequired": "credentials",
    "AccessDenied": "denied",
    "AllAccessDisabled": "denied",
    "403": "denied",
    "NoSuchBucket": "no_bucket",
    "RequestTimeTooSkewed": "clock",
    "SlowDown": "busy",
    "ServiceUnavailable": "busy",
    "InternalError": "busy",
    "RequestTimeout": "busy",
    "RequestLimitExceeded": "busy",
    "Throttling": "busy",
    "ConditionalRequestConflict": "busy",
    "NoSuchKey": "missing",
    "NotFound": "missing",
    "404": "missing",
    "PreconditionFailed": "exists",
    "412": "exists",
    # The body was damaged or cut on its way; sending it again mends that.
    "BadDigest": "busy",
    "IncompleteBody": "busy",
}
_ADVICE: dict[Kind, str] = {
    "credentials": "the key or secret is wrong, or has expired: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "denied": "these credentials may not do that here: ask for reading, writing, listing and deleting under the prefix",
    "no_bucket": "there is no such bucket: create it, or correct `store:`",
    "clock": "this machine's clock is off by more than the server allows: set it (chronyc makestep, or timedatectl set-ntp true)",
    "busy": "the server asks for patience",
    "unreachable": "no connection: check the network and AWS_ENDPOINT_URL",
    "missing": "there is no such object",
    "exists": "the object has changed in the meantime",
    "other": "see the code",
}


class S3Fault(StoreFault):
    """A request that S3 didn't fulfil. `kind` says why."""

    def __init__(self, kind: Kind, what: str, where: str, detail: str) -> None:
        self.kind: Kind = kind
        self.detail = detail
        super().__init__(f"{where}: {what}: {_ADVICE[kind]} ({detail})")

    @property
    def passing(self) -> bool:
        """It goes away by itself: trying again later is right."""
        return self.kind in PASSING


def make_client(*, attempts: int = ATTEMPTS, read_seconds: float = READ_SECONDS) -> Any:
    """An S3 client of boto3 (botocore.client.S3), safe to share between threads. Nothing is asked yet."""
    from botocore.config import Config

    # Checksums by trailer are refused by several servers; every body carries its MD5 instead, which all of them check.
    settings: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": read_seconds,
        "retries": {"mode": "standard", "total_max_attempts": attempts},
        "max_pool_connections": 32,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    with translated("client", "s3"):
        session, chosen = _session()
        region = session.region_name or "us-east-1"
        client = session.client("s3", config=Config(**settings), region_name=region)
        if not urlsplit(client.meta.endpoint_url).netloc.endswith("amazonaws.com") and "addressing_style" not in chosen:
            # Other servers seldom have a name for each bucket.
            settings["s3"] = {"addressing_style": "path"}
            client = session.client("s3", config=Config(**settings), region_name=region)
    return client


def _session() -> tuple[Any, dict[str, Any]]:
    """A boto3 session of the environment as it is now, and the `s3` settings of its profile."""
    import boto3
    import botocore.session

    core: Any = botocore.session.get_session()
    core.register_component("data_loader", _loader())
    return boto3.Session(botocore_session=core), core.get_scoped_config().get("s3") or {}


@functools.cache
def _loader() -> Any:
    """Service descriptions, parsed once a process: most of what a client costs."""
    from botocore.loaders import create_loader

    return create_loader()


def credentials_found() -> str | None:
    """Where boto3 finds credentials (`env`, `shared-credentials-file`, `iam-role`, ...), or None. Never what they are."""
    with translated("credentials", "s3"):
        found = _session()[0].get_credentials()
        return None if found is None else str(found.method)


def endpoint_of(client: Any) -> str:
    """Host and port of the server, without user names."""
    parts = urlsplit(client.meta.endpoint_url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


@contextmanager
def translated(what: str, where: str) -> Generator[None]:
    """Whatever boto3 raises becomes an S3Fault about doing `what` at `where`."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError, PartialCredentialsError
    from botocore.exceptions import ConnectionError as BotoConnectionError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        said = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(said.get("Code", "")) or str(status)
        kind = _CODES.get(code) or _by_status(status)
        # Messages of servers may quote the request; the code never does.
        raise S3Fault(kind, what, where, re.sub(r"[^A-Za-z0-9]", "", code)[:60] or f"status {status}") from None
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise S3Fault("credentials", what, where, type(error).__name__) from None
    except (BotoConnectionError, HTTPClientError, HTTPError, ConnectionError, TimeoutError) as error:
        raise S3Fault("unreachable", what, where, type(error).__name__) from None
    except BotoCoreError as error:
        kind = "credentials" if type(error).__name__ in _CREDENTIAL_ERRORS else _STREAM.get(type(error).__name__, "other")
        raise S3Fault(kind, what, where, type(error).__name__) from None


_CREDENTIAL_ERRORS = frozenset(
    {
        "ProfileNotFound",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "SSOTokenLoadError",
        "UnauthorizedSSOTokenError",
        "InvalidConfigError",
    }
)
_STREAM: dict[str, Kind] = {"IncompleteReadError": "unreachable", "ResponseStreamingError": "unreachable", "FlexibleChecksumError": "busy"}


def _by_status(status: int) -> Kind:
    if status == 403:
        return "denied"
    if status == 404:
        return "missing"
    if status == 412:
        return "exists"
    return "busy" if status >= 500 or status in (408, 409, 429) else "other"
