"""The commands on a store in a bucket: a whole run, one moved to another machine half way, sql, gc, doctor, status."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project, make_project, recipe_data, simulator
from tests.support.s3 import Server


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


def test_a_run_moves_to_another_machine_half_way(server: Server, tmp_path: Path) -> None:
    with simulator("--mean-tokens", "40", "--tokens-per-second", "60", "--slots", "4") as url:
        first = project(tmp_path / "first", server, url)
        process = first.start("run", "r.yaml")
        deadline = time.monotonic() + 120
        while sum(name.startswith("completions/") for name in entries(server)) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.1)
        refused = project(tmp_path / "other", server, url).command("run", "r.yaml")
        assert refused.returncode == 1
        assert f"is being written by process {process.pid} on" in refused.stderr
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        there = entries(server)
        done = {name: entry for name, entry in there.items() if name.startswith("completions/")}
        assert 2 <= len(done) < 6
        # The machine is gone with its disk; its lock runs out after a minute (tests/s3/test_lease.py waits for one).
        server.client().delete_object(Bucket=server.bucket, Key="runs/small/lock.json")
        second = project(tmp_path / "second", server, url)
        ran = second.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert {name: entries(server)[name] for name in done} == done, "what was done was not done again"
        progress = json.loads((second.folder / "data" / "small.working" / "progress.json").read_text())
        assert progress["requests_sent"] <= 48 - 8 * len(done)
        again = second.command("run", "r.yaml")
        assert again.returncode == 0, again.stdout + again.stderr

        status = json.loads(second.command("status", "r.yaml", "--json").stdout)
        assert status["storage"]["pending_files"] == 0
        assert status["storage"]["holder"] is None
        assert status["stages"]["completions"] == {"done": 6, "red": 0, "missing": 0}
        counted = second.command("sql", "r.yaml", "select count(*) as n, count(distinct prompt_id) as p from completions", "--json")
        assert json.loads(counted.stdout) == {"n": 48, "p": 48}, counted.stderr
        assert "runs/small/report.html" in server.objects("runs/small/")


@pytest.fixture
def done(server: Server, tmp_path: Path) -> BucketProject:
    """A finished run in a bucket, seen from another machine that has nothing but the recipe."""
    with simulator("--mean-tokens", "20") as url:
        made = project(tmp_path / "first", server, url)
        ran = made.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return project(tmp_path / "second", server, url)


def test_looking_at_a_bucket_from_elsewhere(done: BucketProject, server: Server) -> None:
    answers = done.command("sql", "r.yaml", "select source, count(*) as n from completions group by all order by all", "--csv")
    assert answers.returncode == 0, answers.stderr
    rows = list(csv.DictReader(io.StringIO(answers.stdout)))
    assert sum(int(row["n"]) for row in rows) == 48
    joined = done.command(
        "sql",
        "r.yaml",
        "select t.split, count(*) as n from training_set t join completions c on t.id = c.event_id join prompts p using (prompt_id) group by all",
        "--json",
    )
    assert {"split": "train"}.items() <= json.loads(joined.stdout.splitlines()[-1]).items(), joined.stderr
    assert not list((done.folder / "data" / "small.working" / "completions").glob("*")), "read where it is, not fetched"
    wrong = done.command("sql", "r.yaml", "select nothing from nowhere")
    assert wrong.returncode == 2
    assert "views: prompts, completions" in wrong.stderr
    closed = done.command("sql", "r.yaml", "select * from read_csv('r.yaml')")
    assert closed.returncode == 2
    assert done.command("peek", "r.yaml", "-n", "1").returncode == 0

    # Garbage: what a killed process left, what was replaced, what others put there.
    client = server.client()
    for name in ("completions/shard-00000.00000000000000aa.parquet", "notes.txt", "quarantine/x.0123456789ab.1"):
        client.put_object(Bucket=server.bucket, Key=f"runs/small/{name}", Body=b"x")
    client.create_multipart_upload(Bucket=server.bucket, Key="runs/small/training_set.0123456789ab/train/part-0.parquet")
    young = done.command("gc", "r.yaml")
    assert "00000000000000aa" not in young.stdout, "younger than an hour: it may be about to be committed"
    before = server.objects("runs/small/")
    shown = done.command("gc", "r.yaml", "--older-than", "0")
    assert "2 file(s) would be removed" in shown.stdout, shown.stdout + shown.stderr
    assert server.objects("runs/small/") == before
    removed = done.command("gc", "r.yaml", "--older-than", "0", "--delete")
    assert removed.returncode == 0, removed.stderr
    after = server.objects("runs/small/")
    assert set(before) - set(after) == {"runs/small/completions/shard-00000.00000000000000aa.parquet"}
    assert not client.list_multipart_uploads(Bucket=server.bucket).get("Uploads")
    for entry in entries(server).values():
        assert all(f"runs/small/{file['path']}" in after for file in entry["files"])


def test_doctor_tries_a_bucket_before_the_first_request(server: Server, tmp_path: Path) -> None:
    made = project(tmp_path, server, "http://127.0.0.1:9")

    def store_checks() -> dict[str, dict[str, Any]]:
        said = made.command("doctor", "r.yaml", "--json")
        assert "Not-The-Secret" not in said.stdout + said.stderr
        return {check["name"]: check for check in json.loads(said.stdout) if check["name"].startswith("store")}

    good = store_checks()
    assert all(check["ok"] for check in good.values())
    assert {"store credentials", "store bucket", "store clock", "store rights", "store lock", "store"} == set(good)
    assert "doctor-" not in "".join(server.objects()), "it leaves nothing behind"
    made.changes = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    missing = store_checks()
    assert not missing["store credentials"]["ok"]
    assert "AWS_ACCESS_KEY_ID" in missing["store credentials"]["todo"]
    if server.kind == "real":
        made.changes = {"AWS_SECRET_ACCESS_KEY": "Not-The-Secret"}
        assert "the key or secret is wrong" in store_checks()["store bucket"]["found"]
    made.changes = {}
    made.write({**recipe_data({"kind": "embedded"}), "store": "s3://no-such-bucket-here/x"})
    assert "no such bucket" in store_checks()["store bucket"]["found"]


def test_a_store_that_is_no_address_is_refused_by_name(server: Server, tmp_path: Path) -> None:
    made = project(tmp_path, server, "http://127.0.0.1:9")
    made.write(recipe_data({"kind": "embedded"}, store="gs://bucket/x"))
    ran: subprocess.CompletedProcess[str] = made.command("run", "r.yaml")
    assert ran.returncode == 2
    assert "give a folder, or s3://bucket/prefix/" in ran.stderr
