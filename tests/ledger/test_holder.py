"""A proof of death: only a process that can see the holder's process may declare it dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import until

from onceward.ledger import holder as holder_module
from onceward.ledger.holder import holder, proved_dead

SLEEPER = "import sys; from onceward.ledger.holder import holder; print(holder(), flush=True); sys.stdin.read()"


def start() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
    process.wait(10)


def parts() -> list[str]:
    """Return boot id, pid namespace, pid and start time."""
    return holder().split("/")


def test_a_living_process_is_not_dead() -> None:
    process, written = start()

    assert not proved_dead(holder())
    assert not proved_dead(written)
    end(process)


def test_a_process_that_ended_is_dead() -> None:
    process, written = start()
    end(process)

    assert proved_dead(written)


def test_a_killed_process_is_dead_before_its_parent_reaps_it() -> None:
    process, written = start()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie

    assert proved_dead(written)
    end(process)


@pytest.mark.parametrize("reaped_before_read", [1, 2])
def test_a_killed_process_is_dead_while_its_parent_reaps_it(
    monkeypatch: pytest.MonkeyPatch, reaped_before_read: int
) -> None:
    """The process exists at the first check, and is gone when /proc is read."""
    process, written = start()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    read, reads = holder_module._stat, 0

    def reap_and_read(pid: int) -> list[str]:
        nonlocal reads
        reads += 1
        if reads == reaped_before_read:
            end(process)
        return read(pid)

    monkeypatch.setattr(holder_module, "_stat", reap_and_read)

    assert proved_dead(written)


def test_a_frozen_process_is_not_dead() -> None:
    process, written = start()
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    assert not proved_dead(written)
    process.send_signal(signal.SIGCONT)
    end(process)


def test_a_reused_pid_proves_the_holder_dead() -> None:
    boot, namespace, pid, started = parts()

    assert proved_dead(f"{boot}/{namespace}/{pid}/{int(started) + 1}")


def test_another_boot_or_pid_namespace_proves_nothing() -> None:
    """The same pid may be another process there. Without these two, a live holder was declared dead."""
    boot, namespace, _, started = parts()

    assert not proved_dead(f"another-boot/{namespace}/999999999/{started}")
    assert not proved_dead(f"{boot}/1/999999999/{started}")
    assert proved_dead(f"{boot}/{namespace}/999999999/{started}")


def test_an_unreadable_holder_proves_nothing() -> None:
    for written in ("", "?//12/", "nonsense", "a/b/c/d", "////"):
        assert not proved_dead(written)


def test_a_process_whose_main_thread_has_ended_is_not_dead_while_another_thread_works() -> None:
    script = (
        "import ctypes, sys, threading; from onceward.ledger.holder import holder; print(holder(), flush=True)\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    written = process.stdout.readline().strip()
    stat = Path(f"/proc/{process.pid}/stat")
    until(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "Z", "its main thread does not end")

    assert not proved_dead(written)
    process.kill()
    end(process)


def test_a_forked_child_is_a_separate_holder() -> None:
    script = (
        "import os; from onceward.ledger.holder import holder, proved_dead\n"
        "mine = holder(); read, write = os.pipe(); pid = os.fork()\n"
        "if pid == 0: os.write(write, holder().encode()); os._exit(0)\n"
        "os.waitpid(pid, 0); childs = os.read(read, 1000).decode()\n"
        "print(childs != mine, proved_dead(childs), proved_dead(mine))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)

    assert done.stdout.split() == ["True", "True", "False"]
