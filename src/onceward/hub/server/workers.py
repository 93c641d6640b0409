"""Worker processes behind one socket: start them, restart those that die, and stop all together.

A pipe connects the parent and each worker. The worker sends one message when it is ready. After that, the pipe only
shows either side that the other has died.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from onceward.core.log_event import log_event

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Pause between restarts of a worker that does not start, perhaps because the database is down.
PAUSE_SECONDS = 1.0
# Time for a process to close files and connections after its grace period, before it exits in any case.
CLOSE_SECONDS = 5.0

_log = logging.getLogger("onceward.hub")
# If this variable is set, Python leaves the current folder out of `sys.path`. A worker removes our value again.
_SAFE_PATH = "PYTHONSAFEPATH"
_OURS = "onceward"
# Not fork: a forked child would inherit locks and connections while other threads use them.
_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """A pool of `count` processes that each run `work(*args, pipe)`, all of which must be picklable.

    grace_seconds  time for a worker to finish its work; some seconds later it is killed
    on_ready       called once, when the first worker is ready
    on_stop        called once, before the workers are stopped
    on_exit        called with the process id of each worker that has ended
    """

    count: int
    work: Callable[..., None]
    args: Iterable[Any]
    grace_seconds: float
    on_ready: Callable[[], None]
    on_stop: Callable[[], None]
    on_exit: Callable[[int], None]
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _was_ready: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> bool:
        """Run until a signal. Return False if a worker ended before any was ready: a restart would not help."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop_all)
        async with asyncio.TaskGroup() as group:
            for _ in range(self.count):
                group.create_task(self._keep_running())
        return not self._failed.is_set()

    def _stop_all(self) -> None:
        if not self._stop.is_set():
            self.on_stop()
            self._stop.set()

    async def _keep_running(self) -> None:
        """Keep one worker running: start another if it ends."""
        while not self._stop.is_set():
            process, pipe = self._start()
            try:
                await self._watch(pipe)
            finally:
                await self._end(process, pipe)
            if self._stop.is_set():
                return
            if not self._was_ready.is_set():
                self._failed.set()
                self._stop_all()
            else:
                log_event(_log.error, "worker_ended", pid=process.pid, exit_code=process.exitcode)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), PAUSE_SECONDS)

    def _start(self) -> tuple[SpawnProcess, Connection]:
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=self.work, args=(*self.args, theirs))
        # Ctrl-C reaches every process of the terminal. A child that is still importing would print a traceback, so the
        # signal is blocked until the child can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ.setdefault(_SAFE_PATH, _OURS)
        try:
            process.start()
        finally:
            restore_path_setting()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            theirs.close()
        return process, ours

    async def _watch(self, pipe: Connection) -> None:
        """Wait until the worker has died or the pool stops."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            while True:
                readable = asyncio.create_task(_readable(pipe.fileno()))
                await asyncio.wait({readable, stop}, return_when=asyncio.FIRST_COMPLETED)
                readable.cancel()
                if stop.done() or not _is_ready(pipe):
                    return
                if not self._was_ready.is_set():
                    self._was_ready.set()
                    self.on_ready()
        finally:
            stop.cancel()

    async def _end(self, process: SpawnProcess, pipe: Connection) -> None:
        """Stop the worker gracefully if it is still running, and kill it if that takes too long."""
        if self._stop.is_set():
            process.terminate()
        try:
            # The worker exits by itself before this, unless it is frozen.
            async with asyncio.timeout(self.grace_seconds + 2 * CLOSE_SECONDS):
                await _readable(process.sentinel)
        except TimeoutError:
            log_event(_log.error, "worker_killed", pid=process.pid, reason="it did not stop in time")
            process.kill()
        process.join()
        pipe.close()
        if process.pid is not None:
            self.on_exit(process.pid)


def restore_path_setting() -> None:
    """Remove our `PYTHONSAFEPATH`, so that it does not affect programs that a brain starts."""
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]


def _is_ready(pipe: Connection) -> bool:
    """Return whether the worker reported that it is ready. False if it has died."""
    try:
        pipe.recv()
    except (EOFError, ConnectionResetError):
        return False
    return True


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
