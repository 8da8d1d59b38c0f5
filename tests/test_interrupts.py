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
