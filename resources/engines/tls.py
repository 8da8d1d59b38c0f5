"""TLS to the servers: whose certificates are believed, and the certificate shown to them.

Here: from file names to an `ssl.SSLContext`. Not here: connections (`connection.py`) and which servers speak TLS (their URLs say).
Certificates are always verified, host names too; there is no switch that turns it off.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_assets.resources.engines.base import EngineError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. Without `ca_file` the system's certificate authorities are believed."""

    ca_file: Path | None = None
    certificate: Path | None = None
    """Client certificate with its chain; None shows none."""
    key: Path | None = None
    """Its private key, unencrypted; None: it stands in `certificate` too."""

    @classmethod
    def of(cls, section: Mapping[str, Any] | None, base_dir: Path) -> TlsFiles | None:
        """From a recipe's `generation.engine.tls`, without nulls; paths begin at the recipe's folder."""
        if not section:
            return None
        return cls(**{name: base_dir / path for name, path in section.items()})


def client_context(files: TlsFiles | None, where: str) -> ssl.SSLContext:
    """Context for connections to a server. Raises EngineError("unauthorised") naming the file that can't be used; `where` is the server."""
    chosen = files or TlsFiles()
    for path in (chosen.ca_file, chosen.certificate, chosen.key):
        if path is not None and not path.is_file():
            raise EngineError("unauthorised", f"{where}: {path}: no such file; correct generation.engine.tls")
    try:
        context = ssl.create_default_context(cafile=chosen.ca_file)
    except (ssl.SSLError, OSError) as error:
        raise EngineError("unauthorised", f"{where}: {chosen.ca_file} holds no certificate authority in PEM form ({error})") from None
    if chosen.certificate is not None:
        try:
            # Without a function OpenSSL would ask for the password at the terminal, and a run at night would wait for it.
            context.load_cert_chain(chosen.certificate, chosen.key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            held = chosen.key or chosen.certificate
            why = str(error) or type(error).__name__
            raise EngineError("unauthorised", f"{where}: {chosen.certificate} with the key in {held} can't be used: {why}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that isn't, readable by this user only")
