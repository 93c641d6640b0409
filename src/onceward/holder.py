"""Who holds a claim, and whether that process is certainly dead.

A holder is written as `boot id / pid namespace / pid / start time`. Only a checker with the same boot id and the same
pid namespace may call it dead: in any other place the same pid means nothing. Where the system tells none of this,
the holder is anonymous and only its lease speaks.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def holder() -> str:
    """The current process, as written into a claim. Read anew in a forked child."""
    pid = os.getpid()
    start = _start_time(pid)
    place = _place()
    return f"{place}/{pid}/{start}" if place and start else f"?//{pid}/"


def proved_dead(written: str) -> bool:
    """True only with proof. A process that cannot be looked at counts as alive."""
    if not written or written.startswith("?"):
        return False
    place, _, rest = written.rpartition("/")
    start, (place, _, pid_text) = rest, place.rpartition("/")
    if place != _place() or not pid_text.isdecimal():
        return False
    pid = int(pid_text)
    if pid == os.getpid() and written == holder():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    found = _start_time(pid)
    return found not in {"", start} or _is_zombie(pid)


def _place() -> str:
    """Boot id and pid namespace, or nothing where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
        shows_us = str(Path("/proc/self").readlink()) == str(os.getpid())
    except OSError:
        return ""
    if not shows_us:  # a /proc of another pid namespace: its processes of these numbers are not those of ours
        return ""
    # Without the dashes and "pid:[…]", a holder stays under 64 bytes: Redis keeps such an entry in a third of the room.
    return f"{boot.replace('-', '')}/{namespace.strip('pid:[]')}"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command name, which may itself contain spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()


def _start_time(pid: int) -> str:
    """Clock ticks since boot, which with the pid names one process for as long as the machine is up."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""  # noqa: PLR2004  # proc(5): field 22, counted after the name


def _is_zombie(pid: int) -> bool:
    """Ended and not yet reaped. A main thread that left other threads running shows Z too, and is not dead."""
    fields = _stat(pid)
    if not fields or fields[0] != "Z":
        return False
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1
    except OSError:
        return False


os.register_at_fork(after_in_child=holder.cache_clear)
