"""Several processes behind one socket: started, watched, started again when they die, and stopped together.

Between the parent and each worker is a pipe. The worker sends one message when it is ready to answer; after that the
pipe only tells either side that the other is gone.
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

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A worker that does not come up again, perhaps because the database is away, is not tried more often than this.
PAUSE_SECONDS = 1.0
# After its grace a process still has this long to close files and connections; then it ends whatever it is doing.
CLOSE_SECONDS = 5.0

_log = logging.getLogger("onceward.hub")
# Python leaves the current folder out of `sys.path` if this is set to anything; a worker removes our value again.
_SAFE_PATH = "PYTHONSAFEPATH"
_OURS = "onceward"
# A forked child would inherit threads' locks and open connections in the middle of their use.
_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Crew:
    """`work(*given, pipe)` is what each of `count` processes runs; all of it must be picklable.

    grace_seconds  how long a worker may take to finish what it does; a while after that it is killed
    on_ready       called once, when the first of them is ready
    on_stop        called once, before they are told to stop
    on_gone        called with the process id of each that has ended
    """

    count: int
    work: Callable[..., None]
    given: Iterable[Any]
    grace_seconds: float
    on_ready: Callable[[], None]
    on_stop: Callable[[], None]
    on_gone: Callable[[int], None]
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _was_ready: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> bool:
        """Until a signal says stop. False: one ended before any got ready, so there is no use in trying again."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._stop_all)
        async with asyncio.TaskGroup() as group:
            for _ in range(self.count):
                group.create_task(self._keep())
        return not self._failed.is_set()

    def _stop_all(self) -> None:
        if not self._stop.is_set():
            self.on_stop()
            self._stop.set()

    async def _keep(self) -> None:
        """One place in the crew, always filled."""
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
                _log.error("worker %d ended with code %s; another one is started", process.pid, process.exitcode)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), PAUSE_SECONDS)

    def _start(self) -> tuple[SpawnProcess, Connection]:
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=self.work, args=(*self.given, theirs))
        # Ctrl-C reaches every process of the terminal. A child that is still importing would print where it was;
        # it takes the signal once it can handle it.
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
        """Returns when the worker is gone, or should go."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            while True:
                told = asyncio.create_task(_readable(pipe.fileno()))
                await asyncio.wait({told, stop}, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                if stop.done() or not _is_ready(pipe):
                    return
                if not self._was_ready.is_set():
                    self._was_ready.set()
                    self.on_ready()
        finally:
            stop.cancel()

    async def _end(self, process: SpawnProcess, pipe: Connection) -> None:
        """In order if it still runs, by force if that takes too long."""
        if self._stop.is_set():
            process.terminate()
        try:
            # It ends itself before this, unless it is frozen.
            async with asyncio.timeout(self.grace_seconds + 2 * CLOSE_SECONDS):
                await _readable(process.sentinel)
        except TimeoutError:
            _log.error("worker %d did not stop and is killed", process.pid)
            process.kill()
        process.join()
        pipe.close()
        if process.pid is not None:
            self.on_gone(process.pid)


def restore_path_setting() -> None:
    """Undo our `PYTHONSAFEPATH`, so that programs started by a brain see the environment they would see elsewhere."""
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]


def _is_ready(pipe: Connection) -> bool:
    """The worker has said so; otherwise it is gone."""
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
