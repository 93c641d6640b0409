"""Profiles of all threads of a process together, request by request."""

from __future__ import annotations

import cProfile
import statistics
import sys
import threading
import time
from pathlib import Path
from types import CodeType
from typing import NamedTuple, TypeAlias

import onceward

# Wait this long before the calls of a request are counted, so that other threads can finish its work.
PAUSE_SECONDS = 0.002

# Calls and own time.
Counted: TypeAlias = tuple[int, float]

_BENCH = Path(__file__).parent
_PACKAGE = Path(onceward.__file__).parent


class Function(NamedTuple):
    """Calls and own time per request. `module` is a path in the package, and empty for functions outside of it."""

    module: str
    name: str
    calls: int
    seconds: float


class Profiles:
    """One cProfile for this thread, and one for each thread that starts later.

    On Python 3.11 a profile records only the thread that enables it, and no thread can enable one for another. So each new
    thread enables its own profile in the function given to `threading.setprofile`, which it calls at its first event. This
    class cannot disable those profiles, so it reads the statistics before and after each request and subtracts them.
    `pstats.Stats` can add up profiles, but it disables them to read them.

    The clock is the processor time of the thread. It does not count waiting for a lock, a disk or a busy processor.

    From Python 3.12 on, one profile records all threads, and a second one is refused. It counts the same calls, but its own
    times are wall-clock times and are mixed up between threads.
    """

    def __init__(self) -> None:
        self._enabled: list[cProfile.Profile] = []
        self._codes: dict[int, CodeType] = {}
        self._before: dict[int, Counted] = {}
        self._requests: list[dict[int, Counted]] = []
        self._enable()
        if sys.version_info < (3, 12):
            threading.setprofile(self._enable)

    def _enable(self, *_event: object) -> None:
        profile = cProfile.Profile(time.thread_time) if sys.version_info < (3, 12) else cProfile.Profile()
        self._enabled.append(profile)
        # C functions are not recorded; their time counts for the caller. That halves the events and the slowdown.
        profile.enable(subcalls=False, builtins=False)

    def begin(self) -> None:
        """Start to count the first request."""
        self._before = self._read()

    def end(self) -> None:
        """End the count of a request and start that of the next one."""
        after, before = self._read(), self._before
        self._requests.append({key: _since(before.get(key, (0, 0.0)), after[key]) for key in after})
        self._before = after

    def functions(self) -> list[Function]:
        """Return the functions that nine of ten requests call, except those of the bench, by descending own time.

        The calls are the lower decile of all requests: timers and races add calls to some requests, and the profiler makes
        requests slow enough to meet timers that they would not meet otherwise. The own time is the median.
        """
        found = []
        for key, code in self._codes.items():
            file = Path(code.co_filename)
            module = file.relative_to(_PACKAGE).as_posix() if file.is_relative_to(_PACKAGE) else ""
            calls, seconds = zip(*[request.get(key, (0, 0.0)) for request in self._requests], strict=True)
            least = sorted(calls)[len(calls) // 10]
            if least and not file.is_relative_to(_BENCH):
                found.append(Function(module, code.co_qualname, least, statistics.median(seconds)))
        return sorted(found, key=lambda function: function.seconds, reverse=True)

    def _read(self) -> dict[int, Counted]:
        """Return the calls and own time of each code object since the start, in all threads."""
        time.sleep(PAUSE_SECONDS)
        found: dict[int, Counted] = {}
        for profile in self._enabled:
            for entry in profile.getstats():
                if not isinstance(entry.code, str):
                    self._codes[id(entry.code)] = entry.code
                    calls, seconds = found.get(id(entry.code), (0, 0.0))
                    found[id(entry.code)] = calls + entry.callcount, seconds + entry.inlinetime
        return found


def _since(before: Counted, after: Counted) -> Counted:
    return after[0] - before[0], after[1] - before[1]
