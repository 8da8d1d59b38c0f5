"""The sensor `alerts`: says once, in its log and to a webhook, that shards failed or that generation has stopped moving.

Here: what is worth an alert, saying it once, sending it. Not here: who starts it: it is off until switched on in the webserver.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import dagster as dg

from dflash_assets.assets.common import Plan
from dflash_assets.assets.keys import partition_keys
from dflash_assets.resources.store import StoreFault
from dflash_assets.resources.store_resource import StoreResource

WEBHOOK = "DFLASH_ALERT_WEBHOOK"
"""Environment variable with the address that alerts are posted to. Its owner's secret, hence no field of the recipe."""
EVERY_SECONDS = 60
STALLED_SECONDS = 600.0
"""The largest deadline of a request is far longer, but a fleet with dozens of slots never stays silent for so long while it works."""
WEBHOOK_SECONDS = 10.0
SHOWN = 20
GENERATING = frozenset({"ramp", "steady", "tail"})


@dataclass(frozen=True, slots=True)
class Seen:
    """What the last look saw: the sensor's cursor."""

    failed: Mapping[str, Sequence[str]] = field(default_factory=dict[str, list[str]])
    """Asset to its failed shards that were said."""
    run: str = ""
    """When the generation run began that was looked at."""
    done: int = -1
    """Its prompts done."""
    since: float = 0.0
    """Since when (seconds since the epoch) there are so many."""
    stalled: bool = False
    """That it stands still was said."""

    @staticmethod
    def of(cursor: str | None) -> Seen:
        """From a sensor's cursor."""
        return Seen(**json.loads(cursor)) if cursor else Seen()

    def cursor(self) -> str:
        """As a sensor's cursor."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing to say."""

    kind: str
    """`failed_shards` or `stalled`."""
    text: str
    shards: tuple[str, ...] = ()


def alerts_of(
    recipe: str, failed: Mapping[str, Sequence[str]], progress: Mapping[str, Any] | None, seen: Seen, now: float
) -> tuple[list[Alert], Seen]:
    """What is new since the last look, and what is seen now. A shard that failed, was mended and fails again is said again."""
    alerts: list[Alert] = []
    for asset, shards in failed.items():
        new = sorted(set(shards) - set(seen.failed.get(asset, ())))
        if new:
            named = ", ".join(new[:SHOWN]) + (f" and {len(new) - SHOWN} more" if len(new) > SHOWN else "")
            alerts.append(Alert("failed_shards", f"{recipe}: {len(new)} shard(s) of {asset} failed: {named}", tuple(new)))
    said = {asset: sorted(shards) for asset, shards in failed.items()}
    if progress is None or progress["phase"] not in GENERATING:
        return alerts, Seen(said)
    run, done = progress["started_at"], int(progress["prompts_done"])
    if (run, done) != (seen.run, seen.done):
        return alerts, Seen(said, run, done, now)
    stalled = now - seen.since >= STALLED_SECONDS
    if stalled and not seen.stalled:
        written = datetime.fromisoformat(progress["written_at"]).astimezone(UTC)
        text = (
            f"{recipe}: no answer for {(now - seen.since) / 60:.0f} min at {done:,} of {progress['prompts_total']:,} prompts, "
            f"{progress['in_flight']} in flight; progress.json was written last at {written:%H:%M} UTC"
        )
        if progress["last_fault"]:
            text += f"; last fault: {progress['last_fault']}"
        alerts.append(Alert("stalled", text))
    return alerts, Seen(said, run, done, seen.since, stalled)


class NotTaken(Exception):
    """The webhook didn't take an alert. Says why without the address, which is a secret: chat services put their token there."""


def send(url: str, recipe: str, alert: Alert) -> None:
    """POST one alert as JSON {text, recipe, kind, shards}; `text` is what chat services show. Raises NotTaken."""
    body = json.dumps({"text": alert.text, "recipe": recipe, "kind": alert.kind, "shards": alert.shards}).encode()
    try:
        if urlsplit(url).scheme not in ("http", "https"):
            raise NotTaken("it is no http:// or https:// address")
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        raise NotTaken(f"HTTP {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NotTaken((isinstance(cause, OSError) and cause.strerror) or type(cause).__name__) from None


def alert_sensor(plan: Plan) -> dg.SensorDefinition:
    """The sensor, off until it is switched on."""
    recipe, keys = plan.recipe, plan.keys
    partitions = dg.StaticPartitionsDefinition(partition_keys(recipe))

    @dg.sensor(
        name=f"{recipe.name}_alerts",
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Says once when shards fail or generation stands still: in this sensor's log, and to the address in {WEBHOOK}.",
    )
    def alerts(context: dg.SensorEvaluationContext, store: StoreResource) -> dg.SkipReason:
        failed = {key.path[-1]: _failed(context.instance, key, partitions) for key in (keys.completions, keys.verdicts)}
        now = datetime.now(UTC).timestamp()
        found, seen = alerts_of(recipe.name, failed, _progress(store), Seen.of(context.cursor), now)
        url = os.environ.get(WEBHOOK)
        for alert in found:
            context.log.warning(alert.text)
            if url:
                try:
                    send(url, recipe.name, alert)
                except NotTaken as error:
                    # The cursor stays where it is, so the next look tries again.
                    return dg.SkipReason(f"{WEBHOOK} didn't take the alert ({error}); tried again at the next look: {alert.text}")
        context.update_cursor(seen.cursor())
        return dg.SkipReason("\n".join(alert.text for alert in found) or "nothing new")

    return alerts


def _failed(instance: dg.DagsterInstance, key: dg.AssetKey, partitions: dg.StaticPartitionsDefinition) -> list[str]:
    statuses = instance.get_status_by_partition(key, partitions.get_partition_keys(), partitions) or {}
    return [shard for shard, status in statuses.items() if status is not None and status.value == "FAILED"]


def _progress(store: StoreResource) -> dict[str, Any] | None:
    try:
        return json.loads(store.open().local("progress.json").read_bytes())
    except (FileNotFoundError, StoreFault):
        return None  # nothing was generated yet, or the store can't be reached: then runs fail, and that is said
