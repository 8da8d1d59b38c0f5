"""What a simulated server is like.

Here: the settings and their units. Not here: what they do (each in its own module) and how a person writes them (`__main__.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_assets.simulator.lengths import Speed


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One simulated server."""

    model: str
    """Served model name."""
    context_length: int = 8192
    slots: int = 32
    """Requests generated at the same time; more wait."""
    max_queued: int | None = None
    """Requests that may wait before it refuses with 503; None: any number."""
    tokens_per_second: float = 0.0
    """Speed of one answer; 0 answers at once. Short for `speed`, which wins when it is given."""
    token_ids_in_chat: bool = True
    """False: like a server before 0.5.19, which ignores `return_token_ids`."""
    speed: Speed | None = None
    """How long answers take."""
    keep_alive_seconds: float = 5.0
    """An idle connection is closed after this long, as SGLang does."""
    health_seconds: float = 0.0
    """How long `/health` takes: about 1 s on a real idle server, more under load."""
    notice_seconds: float = 0.0
    """How long a request goes on whose client has gone: 0 to 4 s on a real server."""
    reported_slots: int | None = None
    """What `/server_info` names as `max_running_requests`: on hybrid models more than really run. None: the truth."""

    @property
    def pace(self) -> Speed:
        """The speed that holds."""
        return self.speed or Speed(tokens_per_second=self.tokens_per_second)
