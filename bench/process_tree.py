"""CPU time and memory of a process and all its descendants, from `/proc`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of the tree, including that of children that have ended."""
    stats = _stats()
    return sum(sum(map(int, stats[one][11:15])) for one in _tree(pid, stats)) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Return the resident memory of the tree. Pages that processes share are counted for each of them."""
    stats = _stats()
    return sum(int(stats[one][21]) for one in _tree(pid, stats)) * _PAGE_BYTES


def _stats() -> dict[int, list[str]]:
    """Return the fields of `/proc/<pid>/stat` after the name, which may contain spaces: the state is first."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process that has just ended
            stats[int(path.parent.name)] = path.read_text("utf-8", "replace").rpartition(")")[2].split()
    return stats


def _tree(pid: int, stats: dict[int, list[str]]) -> list[int]:
    children: dict[int, list[int]] = {}
    for one, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(one)
    tree = [pid] if pid in stats else []
    for one in tree:  # grows while it is read
        tree += children.get(one, [])
    return tree
