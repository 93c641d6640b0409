"""`onceward serve`: everything is checked and made ready, then one process answers, or several behind one socket.

Stopping is in order: no new connections, streams end themselves with the id to resume from, requests under way are
finished, and all of that within `grace_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from onceward.core.log_event import Command, LogEvent
from onceward.db.engine import Database
from onceward.errors import InvalidConfig, StoreUnavailable
from onceward.hub.address import bound, is_loopback, listen, url_of
from onceward.hub.config import Config
from onceward.hub.data import is_readable_by_others, opened
from onceward.hub.setting import without_password
from onceward.hub.tokens import is_required
from onceward.hub.workers import STOP_SIGNALS, Crew, restore_path_setting
from onceward.store.check import check
from onceward.store.open import open_store

if TYPE_CHECKING:
    from onceward.hub.server import Factory, Server

_log = logging.getLogger("onceward.hub")
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
# Counters are mapped into memory. Where a disk has no room for a page of them, the process that touches it is ended by
# SIGBUS, so they are kept off the disk where the system has a place for that.
_MEMORY = Path("/dev/shm")  # noqa: S108  # the folder that is made in it is its owner's alone


def serve(config: Config, factory: Factory | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises `InvalidConfig` and the stores' errors before anything is served.

    `factory` makes another application than the hub's own.
    """
    # Files that SQLite and others make beside ours are private, too.
    os.umask(0o077)
    with contextlib.ExitStack() as stack:
        leave_if_told = stack.enter_context(_ended_by_signals())
        listener = stack.enter_context(bound(config))
        with opened(config) as database:
            _check_tokens(config, listener, database)
        _check_ledger(config)
        listen(config, listener)
        if config.hub.workers == 1:
            _serve_alone(config, factory, listener, leave_if_told)
        else:
            stack.enter_context(_shared_metrics(config))
            _serve_by_many(config, factory, listener)


def _serve_alone(
    config: Config, factory: Factory | None, listener: socket.socket, leave_if_told: Callable[[], None]
) -> None:
    from onceward.hub.server import Server  # noqa: PLC0415  # a parent of workers does without

    _log_as_configured(config)
    server = Server(config, factory, lambda: _announce(config, listener))
    leave_if_told()
    server.serve_on(listener)


def _check_ledger(config: Config) -> None:
    """What only an operator can correct keeps the hub from starting. A ledger that is down may come back."""
    with contextlib.closing(open_store(config.ledger_url)) as store:
        try:
            check(store)
        except StoreUnavailable as error:
            if not error.retryable:
                raise


# Several processes.


def _serve_by_many(config: Config, factory: Factory | None, listener: socket.socket) -> None:
    def on_ready() -> None:
        _announce(config, listener)
        # Only now, when the workers no longer wait for it: it takes a quarter of a second.
        _log_as_configured(config)

    crew = Crew(
        count=config.hub.workers,
        work=_work,
        given=(config, factory, listener),
        grace_seconds=config.hub.grace_seconds,
        on_ready=on_ready,
        # While it is open here, the system goes on accepting connections that nobody will answer.
        on_stop=listener.close,
        on_gone=_forget,
    )
    if not asyncio.run(crew.run()):
        raise SystemExit(1)


def _log_as_configured(config: Config) -> None:
    from onceward.hub.observe import configure  # noqa: PLC0415  # as in `_serve_alone`

    configure(config.hub.log_format, config.hub.log_level)


def _forget(pid: int) -> None:
    from onceward.hub.metrics import forget_worker  # noqa: PLC0415  # as in `_serve_alone`

    forget_worker(pid)


def _work(config: Config, factory: Factory | None, listener: socket.socket, parent: Connection) -> None:
    """What a worker process runs."""
    from onceward.hub.server import Server  # noqa: PLC0415  # as in `_serve_alone`

    restore_path_setting()
    with _ended_by_signals() as leave_if_told:
        # The parent held it back until there was a handler.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _log_as_configured(config)
        server = Server(config, factory, lambda: _report(parent, server))
        leave_if_told()
        server.serve_on(listener)


def _report(parent: Connection, server: Server) -> None:
    """Ready; and without its parent a worker stops, for nobody could tell it to."""
    loop = asyncio.get_running_loop()

    def orphaned() -> None:
        loop.remove_reader(parent.fileno())
        server.should_exit = True

    loop.add_reader(parent.fileno(), orphaned)
    parent.send(b"ready")


@contextlib.contextmanager
def _shared_metrics(config: Config) -> Iterator[None]:
    """A folder in which the workers' counters meet; prometheus-client finds it by its own variable."""
    with contextlib.ExitStack() as stack:
        place, prefix = _metrics_place(config.data_folder)
        with _locked(config.data_folder):
            for old in place.glob(f"{prefix}*"):
                # An unlocked folder is left from a hub that was killed. Anything else there is not ours.
                with contextlib.suppress(OSError), _locked(old, fcntl.LOCK_NB):
                    shutil.rmtree(old, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            stack.enter_context(_locked(folder))
        os.environ[_METRICS] = str(folder)
        try:
            yield
        finally:
            del os.environ[_METRICS]
            shutil.rmtree(folder, ignore_errors=True)


def _metrics_place(data_folder: Path) -> tuple[Path, str]:
    """Where the folder is made, and what its name begins with: the same for all hubs on one data folder."""
    if not os.access(_MEMORY, os.W_OK | os.X_OK):
        return data_folder, "metrics-"
    digest = hashlib.sha256(os.fsencode(data_folder.resolve())).hexdigest()
    return _MEMORY, f"onceward-metrics-{digest[:16]}-"


@contextlib.contextmanager
def _locked(folder: Path, how: int = 0) -> Iterator[None]:
    """A lock that ends with this process, however it ends."""
    # Shared memory is open to every user: opening a FIFO that one of them put there would wait for its writer.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | (os.O_NOFOLLOW if how else 0))
    try:
        if how and os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)


# The address.


def _check_tokens(config: Config, listener: socket.socket, database: Database) -> None:
    """Without tokens everybody who reaches the hub may do everything, so only this machine may reach it."""
    if is_loopback(listener):
        return
    with database.read() as tx:
        if is_required(tx):
            return
    raise InvalidConfig(
        f"{config.hub.host} can be reached from other machines, and there is no token yet; first run"
        " `onceward token create NAME --scope read --scope write` on the same data, or stay on 127.0.0.1"
    )


def _announce(config: Config, listener: socket.socket) -> None:
    data = config.hub.data_dir
    if is_readable_by_others(config.data_folder):
        folder = str(config.data_folder.resolve())
        fields = {"folder": folder, "do": Command(f"chmod 700 {shlex.quote(folder)}")}
        _log.warning(LogEvent("data_folder_is_readable_by_others", fields), extra=fields)
    if config.hub.database:
        data += f", rows in {without_password(config.hub.database)}"
    print(f"onceward: listening on {url_of(listener, config.hub.host)} (data in {data})", flush=True)  # noqa: T201


# The end.


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[Callable[[], None]]:
    """Until there is a server that stops in order, a signal ends the program where it is, without complaint.

    Where it is may be in somebody's `except:`, who goes on. What this gives, called at the last moment, does not.
    """
    told = False

    def leave(_signal: int, _frame: FrameType | None) -> None:
        nonlocal told
        told = True
        raise SystemExit(0)

    def leave_if_told() -> None:
        if told:
            raise SystemExit(0)

    before = {number: signal.signal(number, leave) for number in STOP_SIGNALS}
    try:
        yield leave_if_told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
