"""The identity of a claim's holder, and the proof that a holder is dead.

A holder is written as `boot id / pid namespace / pid / start time`. Only a process with the same boot id and the same
pid namespace can prove it dead: elsewhere the same pid is another process. On a system that does not provide these
values the holder is anonymous, and only its lease counts.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from onceward.store.forks import at_fork


@functools.cache
def holder() -> str:
    """Return the current process as it is written into a claim. A forked child computes it again."""
    pid = os.getpid()
    start = _start_time(pid)
    place = _boot_and_namespace()
    return f"{place}/{pid}/{start}" if place and start else f"?//{pid}/"


def proved_dead(written: str) -> bool:
    """Return whether a holder is provably dead. A process that cannot be inspected counts as alive."""
    if not written or written.startswith("?"):
        return False
    place, _, rest = written.rpartition("/")
    start, (place, _, pid_text) = rest, place.rpartition("/")
    if place != _boot_and_namespace() or not pid_text.isdecimal():
        return False
    pid = int(pid_text)
    if pid == os.getpid() and written == holder():
        return False
    if _is_gone(pid):
        return True
    found = _start_time(pid)
    # Last, because the parent may have reaped the process after the first check.
    return found not in {"", start} or _is_zombie(pid) or _is_gone(pid)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _boot_and_namespace() -> str:
    """Return boot id and pid namespace, or "" where the system does not provide them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
        is_own_proc = str(Path("/proc/self").readlink()) == str(os.getpid())
    except OSError:
        return ""
    if not is_own_proc:  # /proc belongs to another pid namespace, so its pids are other processes
        return ""
    # Without the dashes and "pid:[…]", a holder has less than 64 bytes. Redis stores such an entry in a third of the
    # memory.
    return f"{boot.replace('-', '')}/{namespace.strip('pid:[]')}"


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command name, which may contain spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()


def _start_time(pid: int) -> str:
    """Return the start time in clock ticks since boot. With the pid, it identifies a process until the next boot."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""  # noqa: PLR2004  # proc(5): field 22, counted after the name


def _is_zombie(pid: int) -> bool:
    """Return whether the process has ended and was not reaped.

    A process whose main thread ended while others still run has the state Z too, but is not dead.
    """
    fields = _stat(pid)
    if not fields or fields[0] != "Z":
        return False
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1
    except OSError:
        return False


at_fork(after_in_child=holder.cache_clear)
