"""Recipe section `generation.engine.tls`, and what the URL of a server may hold.

Here: the models and what can be said about them without looking at a file. Not here: opening the files (`resources.engines.tls`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from dflash_assets.recipe.base import RecipeModel


def _without_credentials(url: str) -> str:
    # A recipe is copied into its store and into Dagster's records, so a password in it would be everywhere. The text doesn't repeat it.
    if "@" in urlsplit(url).netloc:
        raise ValueError("a user or password doesn't belong in a recipe: leave it out of the URL, and name a key's variable in api_key_env")
    return url


ServerUrl = Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_without_credentials)]
"""Address of a server, without user and password."""
PlainServerUrl = Annotated[str, Field(pattern=r"^http://"), AfterValidator(_without_credentials)]
"""The same for what speaks no TLS."""


class TlsSpec(RecipeModel):
    """PEM files for https:// servers, relative to the recipe. Certificates and host names are always verified."""

    ca_file: str | None = Field(default=None, min_length=1)
    """Certificate authorities to believe; null takes the system's."""
    certificate: str | None = Field(default=None, min_length=1)
    """Client certificate, for servers that ask for one (mutual TLS)."""
    key: str | None = Field(default=None, min_length=1)
    """Private key of `certificate`, unencrypted; null: it stands in the same file."""

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("key without certificate: name the client certificate it belongs to")
        return self


def check_tls(tls: TlsSpec, urls: Iterable[str]) -> None:
    """Raises ValueError when `tls` would never be used, and a secret would go over the network in the clear."""
    plain = next((url for url in urls if not url.startswith("https://")), None)
    if plain is not None:
        raise ValueError(f"{plain}: with tls every server needs an https:// url")
