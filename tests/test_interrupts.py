"""Ctrl-C and SIGTERM stop a command, whatever it inherited; what it starts begins with both at their default."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from dflash_assets.interrupts import heed_interrupts
from tests.support.project import as_a_script_starts_it

SCRIPT = """
import signal, subprocess, sys, time
from dflash_assets.interrupts import heed_interrupts
heed_interrupts()
code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM))"
subprocess.run([sys.executable, "-c", code])
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("in_background", [False, True])
def test_both_signals_interrupt(number: signal.Signals, in_background: bool) -> None:
    command = [sys.executable, "-c", SCRIPT]
    process = subprocess.Popen(as_a_script_starts_it(command) if in_background else command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == f"True {int(signal.SIG_DFL)}\n", "a child begins with both at their default"
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=20)[0] == "stopped\n"


def test_a_thread_leaves_them_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=heed_interrupts)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


LOST = """
import os, signal
from dagster._utils.interrupts import capture_interrupts
from dflash_assets.interrupts import heed_interrupts, interrupted, stop_if_interrupted
heed_interrupts()
assert not interrupted()
{how}
assert interrupted() and interrupted()
try:
    stop_if_interrupted()
except KeyboardInterrupt:
    print("stopped")
heed_interrupts()
assert not interrupted()
"""
SWALLOWED = """
try:
    os.kill(os.getpid(), signal.{name})
    for _ in range(1000): pass
except:
    pass
"""
BETWEEN_STEPS = """
with capture_interrupts():
    os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("how", [SWALLOWED, BETWEEN_STEPS], ids=["swallowed", "between_steps"])
def test_a_signal_whose_exception_got_lost_is_still_known(how: str, name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOST.format(how=how.format(name=name))], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (0, "stopped\n"), ran.stderr


def test_other_signals_stop_nothing() -> None:
    script = LOST.format(
        how="signal.signal(signal.SIGUSR1, lambda *_: None)\nos.kill(os.getpid(), signal.SIGUSR1)\nraise SystemExit(int(interrupted()))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
