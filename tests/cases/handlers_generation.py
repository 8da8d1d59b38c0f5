"""Recorded faults about resuming, and of servers (family 6) as a whole run meets them.

Resuming: what was written before a kill counts, what was torn is done again, nothing twice. The recorded faults
happened to JSON Lines files; here the same bytes happen to a journal segment: whole lines become whole records, a torn
line a torn record.

Servers: a generation run plays each script on the chat route as it stands and on `/generate` in that route's shape;
what a single engine must say about it is then checked by `handlers_servers`. How the rows' words map to ours:

    row_status ok / failed     the committed row's outcome is in ANSWERED / is not
    failure_kind               context_length -> outcome prompt_too_long; timeout -> outcome timed_out
    first_failure_kind         kind of fault counted in the progress (`faults`)
    logged_snippet_contains    `last_fault` of progress.json, and the log
    max_retries                `max_attempts` less one
    request_timeout_s          the request's deadline
    max_consecutive_failures   `give_up_seconds`: the run stops when no server has answered for so long
    server_not_marked_dead     `down` is false for the server in progress.json

Timeouts and delays are those of the rows; the two routes are played side by side to save the time.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dflash_assets.generation.journal import Journal
from dflash_assets.generation.requests import shard_asks
from dflash_assets.generation.shards import ShardPlan
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.rows import ANSWERED
from tests.cases import handlers_servers
from tests.support.cases import NotHandled
from tests.support.engines import ScriptedEngine
from tests.support.generation import an_answer, facts, run_all, write_shards
from tests.support.playing import ROUTES, LiveServer, Played, live_settings, play_run


def handle(row: dict[str, Any]) -> None:
    given, expected = row["input"], row["expected"]
    if row.get("input_format") == "resume_spec":
        requests, final = resumed(given["input_ids"], given["output_ids_before_kill"], torn=b"")
        assert requests == expected["requests_sent_for"]
        assert set(final) == set(expected["final_ids_set"])
        return
    if row.get("input_format") == "jsonl_file" and str(given.get("operation", "")).startswith("resume and append"):
        data = base64.b64decode(given["output_file_b64"]) if "output_file_b64" in given else given["output_file_text"].encode()
        done, torn = split_lines(data)
        wanted = expected["ids_after"]
        requests, final = resumed(wanted, done, torn)
        assert sorted(final) == sorted(wanted), "nothing lost, nothing twice"
        assert requests == [name for name in wanted if name not in done]
        return
    check = check_of(row) if row.get("input_format") == "http_behaviour" else None
    if check is not None:
        with ThreadPoolExecutor(len(ROUTES)) as both:
            for done_check in [both.submit(check, row, route) for route in ROUTES]:
                done_check.result()
        if row["id"] in handlers_servers.KNOWN:
            handlers_servers.handle(row)
        return
    raise NotHandled


def split_lines(data: bytes) -> tuple[list[str], bytes]:
    """Ids of the lines that are whole (a missing last line feed is no tear), and the bytes of a torn tail."""
    done: list[str] = []
    torn = b""
    for line in data.split(b"\n"):
        try:
            done.append(json.loads(line)["id"])
        except (ValueError, UnicodeDecodeError):
            torn = line
    return done, torn


def resumed(names: list[str], done: Iterable[str], torn: bytes) -> tuple[list[str], list[str]]:
    """Run a shard of these prompts over a journal in which `done` are written and a torn record follows.

    Returns the names requests were sent for, in order, and the names of the committed rows.
    """
    folder = Path(tempfile.mkdtemp())
    store = DirectoryStore(folder / "store", "test")
    [plan] = write_shards(folder, 1, len(names))
    assert isinstance(plan, ShardPlan)
    assert plan.prompts is not None
    asks = dict(zip(names, shard_asks(plan.prompts, facts().keys, 1), strict=True))
    journal = Journal(store.work / "journal")
    for name in done:
        journal.append(an_answer(asks[name].key, name)).result(timeout=10)
    journal.close()
    if torn:
        [segment] = (store.work / "journal").glob("*.log")
        with segment.open("ab") as file:
            file.write((len(torn) * 2).to_bytes(4, "little") + bytes(8) + torn)
    engine = ScriptedEngine(slots=1)
    [outcome] = run_all(store, [plan], [engine])
    assert outcome.error is None
    assert outcome.entry is not None
    rows = pq.read_table(store.local(outcome.entry.files[0].path)).to_pylist()
    by_prompt = {ask.prompt_id: name for name, ask in asks.items()}
    by_ids = {ask.prompt_ids: name for name, ask in asks.items()}
    return sorted(by_ids[request.prompt_ids] for request in engine.seen), [by_prompt[row["prompt_id"]] for row in rows]


# -- servers -----------------------------------------------------------------------------------------------------------


def _script(row: dict[str, Any]) -> list[dict[str, Any]]:
    return row["input"]["script"]


def _window(row: dict[str, Any]) -> dict[str, Any]:
    """Window settings that the row's config asks for."""
    config = row["input"].get("config") or {}
    changes: dict[str, Any] = {"open_prompts_per_slot": 1}
    if "request_timeout_s" in config:
        changes["deadline_seconds"] = float(config["request_timeout_s"])
    if "max_retries" in config:
        changes["max_attempts"] = config["max_retries"] + 1
    return changes


def _play(row: dict[str, Any], route: str, **how: Any) -> Played:
    return play_run(route, _script(row), window=live_settings(**_window(row)), **how)


def _context(row: dict[str, Any], route: str) -> None:
    """One request, no retry, and the next prompt is asked as if nothing had been."""
    played = _play(row, route, shards=2)
    assert [answer["outcome"] for answer in played.rows] == ["prompt_too_long", "ok"]
    assert _script(row)[0]["json"]["message"] in played.rows[0]["detail"]
    assert len(played.bodies) == 2, "the refused body was sent once"
    assert played.rows[0]["attempts"] == row["expected"].get("requests", 1)
    assert played.error is None


def _recovers(row: dict[str, Any], route: str) -> None:
    """All steps but the last are faults of one kind; the last one is the answer, and it is kept once."""
    played = _play(row, route)
    expected, faults = row["expected"], len(_script(row)) - 1
    [answer] = played.rows
    assert answer["outcome"] in ANSWERED
    assert "4" in answer["text"]
    assert answer["attempts"] == len(played.asked_at) == expected["requests"] == faults + 1
    assert sum(played.snapshot["faults"].values()) == faults
    assert "first_failure_kind" not in expected or set(played.snapshot["faults"]) == {expected["first_failure_kind"]}
    assert expected.get("logged_snippet_contains", "") in (played.snapshot["last_fault"] or "")
    waited = [later - earlier for earlier, later in zip(played.asked_at, played.asked_at[1:], strict=False)]
    assert waited[0] >= expected.get("delay_before_second_s_min", 0.0)
    assert played.error is None


def _hangs(row: dict[str, Any], route: str) -> None:
    """A bounded number of tries, each as long as the deadline; the row says so, and the run ends by itself."""
    bound = any("on" in step for step in _script(row))
    played = _play(row, route, shards=1 if bound else 2)
    tries = row["input"]["config"]["max_retries"] + 1
    assert played.error is None
    assert played.rows[0]["outcome"] == "timed_out"
    assert played.rows[0]["attempts"] == tries
    assert [answer["outcome"] for answer in played.rows[1:]] == [] if bound else ["ok"]
    deadline = row["input"]["config"]["request_timeout_s"]
    assert tries * deadline <= played.seconds <= row["expected"].get("elapsed_s_max", 15)
    assert f"{deadline:g} s" in played.rows[0]["detail"]


def _never_back(row: dict[str, Any], route: str) -> None:
    """Connections refused after the first shard, and from the very beginning."""
    assert "refuse_connection_s" in _script(row)[0]

    def dies(server: LiveServer, _outcome: object) -> None:
        server.stop()

    window = live_settings(open_prompts_per_slot=1, give_up_seconds=2.0)
    # The second shard is being answered when the server goes: each answer takes the half of a second.
    played = play_run(
        route, [{"delay_s": 0.5 * bool(number), "json_content": "fine"} for number in range(9)], shards=9, window=window, after_shard=dies
    )
    assert played.error is not None, "the run stops"
    assert played.error.exit_code != row["expected"]["exit_code_not"]
    assert row["expected"]["message_contains"] in str(played.error)
    assert "http://127.0.0.1:" in str(played.error), "the error names the server"
    assert "run again" in str(played.error), "and says what to do"
    assert 1 <= len(played.rows) < 9, "what was done is kept"
    assert played.seconds < 30 < row["expected"]["elapsed_s_max"]
    absent = play_run(route, [], form="http://127.0.0.1:9")
    assert absent.error is not None
    assert "no server answers: http://127.0.0.1:9" in str(absent.error)
    assert absent.error.exit_code != 0


def _other_model(row: dict[str, Any], route: str) -> None:
    played = play_run(route, _script(row), expected_model=row["expected"]["configured_model"])
    assert played.error is not None
    assert all(name in str(played.error) for name in row["expected"]["message_contains"])
    assert played.asked_at == [], "no generation was asked for"


def _unwell(row: dict[str, Any], route: str) -> None:
    played = _play(row, route, shards=3)
    assert [answer["outcome"] for answer in played.rows] == ["ok"] * 3
    assert [server["down"] for server in played.snapshot["servers"].values()] == [False]
    assert played.snapshot["faults"] == {}


def _backwards(row: dict[str, Any], route: str) -> None:
    """Eight at once, answered in the reverse order: each row holds the answer to its own prompt, in the order of the input."""
    [step], count = _script(row), row["input"]["rows"]
    assert step["delay_s"] == "(8-i)*0.2"
    script = [{"delay_s": (count - place) * 0.2, "json_content": step["json_content"]} for place in range(count)]
    played = play_run(route, script, size=count, slots=count, window=live_settings())
    assert [answer["text"].removesuffix("<|im_end|>") for answer in played.rows] == [
        f"answer to question {number}" for number in range(count)
    ]
    assert [answer["prompt_id"] for answer in played.rows] == [f"p{number:05d}" for number in range(count)]


def _no_usage(row: dict[str, Any], route: str) -> None:
    played = _play(row, route)
    [answer] = played.rows
    assert answer["outcome"] == "ok"
    assert len(answer["output_ids"]) >= row["expected"]["output_tokens_min"]
    assert played.snapshot["output_tokens"] == len(answer["output_ids"])


def _base_urls(row: dict[str, Any], route: str) -> None:
    for variant in row["input"]["config_variants"]:
        played = _play(row, route, form=variant.replace("http://127.0.0.1:PORT", "{}"))
        assert [answer["outcome"] for answer in played.rows] == ["ok"]
        asked = {path for path in played.paths if path in ROUTES.values()}
        assert asked == (set(row["expected"]["requested_paths"]) if route == "chat" else {"/generate"})
        assert not any(path.startswith(("/v1/v1", "//")) for path in played.paths)


def _thinking_is_said(row: dict[str, Any], route: str) -> None:
    """The chat body says whether to think; on `/generate` the rendered ids do."""
    [wanted] = row["expected"]["request_body_contains"].values()
    for thinking in (row["input"]["config"]["thinking"], False):
        played = play_run(route, [], thinking=thinking)
        [body] = played.bodies
        if route == "chat":
            assert body["chat_template_kwargs"]["enable_thinking"] is (wanted["enable_thinking"] if thinking else False)
        else:
            assert body["input_ids"] == played.rows[0]["prompt_ids"]


_BY_EXPECTATION: tuple[tuple[str, Callable[[dict[str, Any], str], None]], ...] = (
    ("request_body_contains", _thinking_is_said),
    ("run_stops_before_first_generation", _other_model),
    ("run_stops", _never_back),
    ("server_not_marked_dead", _unwell),
    ("for_each_row", _backwards),
    ("output_tokens_source", _no_usage),
    ("requested_paths", _base_urls),
)


def check_of(row: dict[str, Any]) -> Callable[[dict[str, Any], str], None] | None:
    """The check of a row of server behaviour, by what it expects and never by its id; None for a row about content."""
    expected = row["expected"]
    for key, check in _BY_EXPECTATION:
        if key in expected:
            return check
    if expected.get("failure_kind") == "timeout":
        return _hangs
    if expected.get("failure_kind") == "context_length" or "context_length" in str(expected.get("either", "")):
        return _context
    return _recovers if expected.get("row_status") == "ok" else None
