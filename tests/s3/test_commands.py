"""The commands on a store in a bucket: a whole run, one moved to another machine half way, sql, gc, doctor, status."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dflash_assets.cli import doctor, gc, sql
from dflash_assets.cli.opened import opened
from dflash_assets.recipe.load import load_recipe
from dflash_assets.recipe.readiness import problems
from tests.support.project import Project, make_project, recipe_data, simulator, simulator_process
from tests.support.s3 import Server, fresh, real

pytestmark = pytest.mark.timeout(480)  # whole runs, about 25 CPU-seconds each


class BucketProject(Project):
    """A project whose store is a bucket; its environment knows the server."""

    server: Server
    changes: dict[str, str]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.server.environment(), **self.changes}


def project(folder: Path, server: Server, url: str, **changes: Any) -> BucketProject:
    made = make_project(
        folder,
        recipe_data({"kind": "sglang", "servers": [{"url": url}]}, store=server.url("runs/small"), **changes),
    )
    found = BucketProject(made.folder)
    found.server, found.changes = server, {}
    return found


def entries(server: Server) -> dict[str, Any]:
    data = server.objects("runs/small/").get("runs/small/manifest.json")
    return json.loads(data)["entries"] if data else {}


@pytest.fixture(scope="module", params=["moto", pytest.param("real", marks=pytest.mark.s3)])
def server(request: pytest.FixtureRequest) -> Server:
    """One bucket for all tests here; the commands find it through their own environment."""
    return fresh(request.getfixturevalue("_moto")) if request.param == "moto" else real()


@dataclass
class Story:
    """A run that was cut off on one machine and finished on another."""

    done_by_first: dict[str, Any]
    """Entries of completions in the bucket when the first machine went away."""
    refused: subprocess.CompletedProcess[str]
    """A third machine's attempt while the first one ran."""
    first_pid: int
    ran: subprocess.CompletedProcess[str]
    second: BucketProject
    progress: dict[str, Any]


@pytest.fixture(scope="module")
def story(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("machines")
    with simulator_process("--mean-tokens", "40", "--tokens-per-second", "50", "--slots", "2") as (url, answering):
        first = project(folder / "first", server, url)
        process = first.start("run", "r.yaml")
        deadline = time.monotonic() + 200
        while not any(name.startswith("completions/") for name in entries(server)):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.1)
        # No answer arrives any more, so that the first one is at work, and shows signs of life, however long the third one takes.
        os.kill(answering.pid, signal.SIGSTOP)
        refused = project(folder / "third", server, url).command("run", "r.yaml")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        os.kill(answering.pid, signal.SIGCONT)
        done = {name: entry for name, entry in entries(server).items() if name.startswith("completions/")}
        # The machine is gone with its disk; its lock runs out after a minute (tests/s3/test_lease.py waits for one).
        server.client().delete_object(Bucket=server.bucket, Key="runs/small/lock.json")
        second = project(folder / "second", server, url)
        ran = second.command("run", "r.yaml")
    progress = json.loads((second.folder / "data" / "small.working" / "progress.json").read_text())
    return Story(done, refused, process.pid, ran, second, progress)


def test_a_run_moves_to_another_machine_half_way(story: Story, server: Server) -> None:
    assert story.ran.returncode == 0, story.ran.stdout + story.ran.stderr
    assert 1 <= len(story.done_by_first) < 6
    assert {name: entries(server)[name] for name in story.done_by_first} == story.done_by_first, "what was done was not done again"
    assert story.progress["requests_sent"] <= 48 - 8 * len(story.done_by_first)
    status = json.loads(story.second.command("status", "r.yaml", "--json").stdout)
    assert status["storage"]["pending_files"] == 0
    assert status["storage"]["holder"] is None
    assert status["stages"]["completions"] == {"done": 6, "red": 0, "missing": 0}
    counted = story.second.command("sql", "r.yaml", "select count(*) as n, count(distinct prompt_id) as p from completions", "--json")
    assert json.loads(counted.stdout) == {"n": 48, "p": 48}, counted.stderr
    assert "runs/small/report.html" in server.objects("runs/small/")


def test_a_second_run_is_refused_with_who_holds_the_store(story: Story) -> None:
    assert story.refused.returncode == 1
    assert f"is being written by process {story.first_pid} on" in story.refused.stderr


@pytest.fixture
def elsewhere(story: Story, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe of the finished run on another machine that has nothing else; this process is there."""
    assert story.ran.returncode == 0
    server.use(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return project(tmp_path, server, "http://127.0.0.1:9").recipe


def asked(recipe: Path, query: str) -> list[dict[str, Any]]:
    columns, batches = sql.answer(opened(recipe), query)
    assert columns
    return [row for batch in batches for row in batch.to_pylist()]


def test_sql_over_a_bucket_reads_where_it_is(elsewhere: Path) -> None:
    assert sum(row["n"] for row in asked(elsewhere, "select source, count(*) as n from completions group by all")) == 48
    joined = asked(
        elsewhere,
        "select t.split, count(*) as n from training_set t join completions c on t.id = c.event_id "
        "join prompts p on p.prompt_id = c.prompt_id group by all",
    )
    assert {row["split"] for row in joined} >= {"train"}
    assert {row["state"] for row in asked(elsewhere, "select distinct state from ledger")} >= {"kept"}
    assert asked(elsewhere, "select count(*) as n from verdicts")[0]["n"] > 48
    assert asked(elsewhere, "select count(*) as n from rejected")[0]["n"] >= 3
    assert not list((elsewhere.parent / "data" / "small.working" / "completions").glob("*")), "read where it is, not fetched"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select nothing from nowhere", "nowhere"),
        ("selec 1", "syntax error"),
        ("select * from read_csv('r.yaml')", "disabled"),
        ("copy ledger to 'x.csv'", "disabled"),
        ("install httpfs", "disabled"),
        ("set enable_external_access = true", "locked"),
        ("select cast(source as int) from completions", "Could not convert"),
    ],
)
def test_a_query_that_cannot_be_answered(elsewhere: Path, query: str, words: str) -> None:
    with pytest.raises(sql.SqlError, match="views: prompts, completions") as error:
        asked(elsewhere, query)
    assert words in str(error.value)
    assert error.value.exit_code == 2


def test_the_shapes_of_an_answer(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select 1 as a, 'x,y' as a, [1, 2] as c"
    sql.sql(elsewhere, query, as_json=False, as_csv=True)
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["a", "a", "c"], ["1", "x,y", "[1,2]"]]
    sql.sql(elsewhere, "select 1 as a, [1, 2] as c, null as d", as_json=True, as_csv=False)
    assert json.loads(capsys.readouterr().out) == {"a": 1, "c": [1, 2], "d": None}
    sql.sql(elsewhere, "select * from range(5)", as_json=False, as_csv=False, limit=2)
    assert "the first 2 rows" in capsys.readouterr().out


def test_gc_of_a_bucket(elsewhere: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """What a killed process left, what was replaced, what others put there."""
    client = server.client()
    for name in ("completions/shard-00000.00000000000000aa.parquet", "notes.txt", "quarantine/x.0123456789ab.1"):
        client.put_object(Bucket=server.bucket, Key=f"runs/small/{name}", Body=b"x")
    client.create_multipart_upload(Bucket=server.bucket, Key="runs/small/training_set.0123456789ab/train/part-0.parquet")
    gc.gc(elsewhere, delete=False)
    assert "00000000000000aa" not in capsys.readouterr().out, "younger than an hour: it may be about to be committed"
    before = server.objects("runs/small/")
    gc.gc(elsewhere, delete=False, older_than=0)
    shown = capsys.readouterr().out
    assert "2 file(s) would be removed" in shown
    assert "not this program's: left alone" in shown
    assert server.objects("runs/small/") == before
    gc.gc(elsewhere, delete=True, older_than=0)
    after = server.objects("runs/small/")
    gone = {key for key in set(before) - set(after) if "/journal/" not in key}  # the journal's copies move to whoever holds the lock
    assert gone == {"runs/small/completions/shard-00000.00000000000000aa.parquet"}
    assert not client.list_multipart_uploads(Bucket=server.bucket).get("Uploads")
    for entry in entries(server).values():
        assert all(f"runs/small/{file['path']}" in after for file in entry["files"])


def test_doctor_tries_a_bucket_before_the_first_request(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = project(tmp_path, server, "http://127.0.0.1:9")

    def checks(recipe: Path, **changes: str) -> dict[str, doctor.Check]:
        server.use(monkeypatch, **changes)
        found = {check.name: check for check in doctor._store(load_recipe(recipe))}
        assert "Not-The-Secret" not in str(found)
        return found

    good = checks(made.recipe)
    assert all(check.ok for check in good.values()), good
    assert {"store credentials", "store bucket", "store clock", "store rights", "store lock", "store"} == set(good)
    assert "doctor-" not in "".join(server.keys()), "it leaves nothing behind"
    missing = checks(made.recipe, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert not missing["store credentials"].ok
    assert "AWS_ACCESS_KEY_ID" in missing["store credentials"].todo
    if server.kind == "real":
        assert "the key or secret is wrong" in checks(made.recipe, AWS_SECRET_ACCESS_KEY="Not-The-Secret")["store bucket"].found
    made.write({**recipe_data({"kind": "embedded"}), "store": "s3://no-such-bucket-here/x"})
    assert "no such bucket" in checks(made.recipe)["store bucket"].found


def test_a_store_that_is_no_address_is_refused_by_name(server: Server, tmp_path: Path) -> None:
    made = project(tmp_path, server, "http://127.0.0.1:9")
    made.write(recipe_data({"kind": "embedded"}, store="gs://bucket/x"))
    assert any("give a folder, or s3://bucket/prefix/" in problem for problem in problems(load_recipe(made.recipe), tmp_path))


def test_two_machines_answer_a_range_each_and_a_third_makes_the_set(server: Server, tmp_path: Path) -> None:
    name = f"ranges-{server.kind}"

    def machine(folder: Path, url: str) -> BucketProject:
        made = project(folder, server, url)
        made.recipe.write_text(made.recipe.read_text().replace("runs/small", f"runs/{name}"))
        return made

    with simulator("--mean-tokens", "20", "--tokens-per-second", "60", "--slots", "4") as url:
        hosts = [machine(tmp_path / f"host-{number}", url) for number in range(3)]
        early = hosts[0].command("run", "r.yaml", "--shards", "0-2")
        assert early.returncode == 1
        assert "blend isn't there yet" in early.stdout + early.stderr
        made = hosts[2].command("run", "r.yaml", "--blend-only")
        assert made.returncode == 0, made.stdout + made.stderr
        ranges = [hosts[0].start("run", "r.yaml", "--shards", "0-2"), hosts[1].start("run", "r.yaml", "--shards", "3-5")]
        for process in ranges:
            said, errors = process.communicate(timeout=200)
            assert process.returncode == 0, (said, errors)
        ended = hosts[2].command("run", "r.yaml")
        assert ended.returncode == 0, ended.stdout + ended.stderr
    counted = hosts[2].command("sql", "r.yaml", "select count(*) as n, count(distinct prompt_id) as p from completions", "--json")
    assert json.loads(counted.stdout) == {"n": 48, "p": 48}, counted.stderr
    progress = [json.loads((host.folder / "data" / "small.working" / "progress.json").read_text())["requests_sent"] for host in hosts]
    assert progress[2] == 0
    assert all(progress[:2])
    refused = hosts[0].command("run", "r.yaml", "--shards", "4-9")
    assert refused.returncode == 2
    assert "within 0-5" in refused.stderr
