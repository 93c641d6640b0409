"""`onceward serve`: check and prepare everything, then serve in one process, or in several behind one socket.

A graceful stop accepts no new connections, ends streams with the id to resume from, and finishes the requests in
progress, all within `grace_seconds`.
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
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from onceward.core.log_event import Command, log_event
from onceward.errors import InvalidConfig, StoreUnavailable
from onceward.hub.config.config import Config
from onceward.hub.config.data_folder import is_readable_by_others, opened
from onceward.hub.config.setting import without_password
from onceward.hub.db.engine import Database
from onceward.hub.security.tokens import is_required
from onceward.hub.server.listener import bind_listener, is_loopback, listen, url_of
from onceward.hub.server.tls import is_key_readable_by_others, tls_context
from onceward.hub.server.workers import STOP_SIGNALS, WorkerPool, restore_path_setting
from onceward.store.check import check
from onceward.store.open import open_store

if TYPE_CHECKING:
    from onceward.hub.server.process import Factory, Server

_log = logging.getLogger("onceward.hub")
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
# Counters are memory-mapped files. If the disk is full, touching a new page of them kills the process with SIGBUS, so
# they are in shared memory where the system has it.
_MEMORY = Path("/dev/shm")  # noqa: S108  # only a private folder is created in it


def serve(config: Config, factory: Factory | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises `InvalidConfig` and errors of the stores before anything is served.

    `factory` builds an application to serve instead of the hub's own.
    """
    # Files that SQLite and others create next to ours are private, too.
    os.umask(0o077)
    tls_context(config)
    with contextlib.ExitStack() as stack:
        exit_if_signalled = stack.enter_context(_ended_by_signals())
        listener = stack.enter_context(bind_listener(config))
        with opened(config) as database:
            _check_tokens(config, listener, database)
        _check_ledger(config)
        listen(config, listener)
        if config.hub.workers == 1:
            _serve_alone(config, factory, listener, exit_if_signalled)
        else:
            stack.enter_context(_shared_metrics(config))
            _serve_by_many(config, factory, listener)


def serve_locally(config: Config, factory: Factory, announce: Callable[[str], None]) -> None:
    """Serve an application without the hub's data, in one process and on this machine only, until a signal.

    Args:
        config: Its address.
        factory: Builds the application.
        announce: Called with the URL when the application is ready.

    Raises:
        InvalidConfig: The address can be reached from other machines, or is in use.
    """
    from onceward.hub.server.process import Server  # noqa: PLC0415  # slow import

    with _ended_by_signals() as exit_if_signalled, bind_listener(config) as listener:
        if not is_loopback(listener):
            raise InvalidConfig(
                f"{config.hub.host} can be reached from other machines, and this console has no login; use 127.0.0.1"
            )
        listen(config, listener)
        server = Server(config, factory, lambda: announce(url_of(listener, config.hub.host)))
        exit_if_signalled()
        server.serve_on(listener)


def _serve_alone(
    config: Config, factory: Factory | None, listener: socket.socket, exit_if_signalled: Callable[[], None]
) -> None:
    from onceward.hub.server.process import Server  # noqa: PLC0415  # slow import; the parent of workers does without

    _log_as_configured(config)
    server = Server(config, factory, lambda: _announce(config, listener))
    exit_if_signalled()
    server.serve_on(listener)


def _check_ledger(config: Config) -> None:
    """Refuse to start if only an operator can fix the ledger. A ledger that is down may come back."""
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
        # Logging is configured only now, so that the workers do not wait for it: it takes a quarter of a second.
        _log_as_configured(config)

    pool = WorkerPool(
        count=config.hub.workers,
        work=_run_worker,
        args=(config, factory, listener),
        grace_seconds=config.hub.grace_seconds,
        on_ready=on_ready,
        # While the listener is open here, the system accepts connections that no process will serve.
        on_stop=listener.close,
        on_exit=_forget_worker,
    )
    if not asyncio.run(pool.run()):
        raise SystemExit(1)


def _log_as_configured(config: Config) -> None:
    from onceward.hub.web.request_log import configure  # noqa: PLC0415  # as in `_serve_alone`

    configure(config.hub.log_format, config.hub.log_level)


def _forget_worker(pid: int) -> None:
    from onceward.hub.web.metrics import forget_worker  # noqa: PLC0415  # as in `_serve_alone`

    forget_worker(pid)


def _run_worker(config: Config, factory: Factory | None, listener: socket.socket, parent: Connection) -> None:
    """Run a worker process."""
    from onceward.hub.server.process import Server  # noqa: PLC0415  # as in `_serve_alone`

    restore_path_setting()
    with _ended_by_signals() as exit_if_signalled:
        # The parent blocked SIGINT until this handler was installed.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _log_as_configured(config)
        server = Server(config, factory, lambda: _report_ready(parent, server))
        exit_if_signalled()
        server.serve_on(listener)


def _report_ready(parent: Connection, server: Server) -> None:
    """Report to the parent that the worker is ready, and stop the worker if the parent dies."""
    loop = asyncio.get_running_loop()

    def orphaned() -> None:
        loop.remove_reader(parent.fileno())
        server.should_exit = True

    loop.add_reader(parent.fileno(), orphaned)
    parent.send(b"ready")


@contextlib.contextmanager
def _shared_metrics(config: Config) -> Iterator[None]:
    """Provide the folder for the workers' counters, which prometheus-client finds through its own variable."""
    with contextlib.ExitStack() as stack:
        location, prefix = _metrics_location(config.data_folder)
        with _locked(config.data_folder):
            for old in location.glob(f"{prefix}*"):
                # An unlocked folder was left by a hub that was killed. A locked one is in use.
                with contextlib.suppress(OSError), _locked(old, fcntl.LOCK_NB):
                    shutil.rmtree(old, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=location))
            stack.enter_context(_locked(folder))
        os.environ[_METRICS] = str(folder)
        try:
            yield
        finally:
            del os.environ[_METRICS]
            shutil.rmtree(folder, ignore_errors=True)


def _metrics_location(data_folder: Path) -> tuple[Path, str]:
    """Return where the metrics folder is created, and the prefix of its name, which the data folder determines."""
    if not os.access(_MEMORY, os.W_OK | os.X_OK):
        return data_folder, "metrics-"
    digest = hashlib.sha256(os.fsencode(data_folder.resolve())).hexdigest()
    return _MEMORY, f"onceward-metrics-{digest[:16]}-"


@contextlib.contextmanager
def _locked(folder: Path, flag: int = 0) -> Iterator[None]:
    """Lock a folder. The lock ends with this process, however it ends."""
    # Every user can write to shared memory: without O_NONBLOCK, opening a planted FIFO would wait for its writer.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | (os.O_NOFOLLOW if flag else 0))
    try:
        if flag and os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
        fcntl.flock(descriptor, fcntl.LOCK_EX | flag)
        yield
    finally:
        os.close(descriptor)


# The address.


def _check_tokens(config: Config, listener: socket.socket, database: Database) -> None:
    """Refuse a public address without tokens: everybody who reaches the hub could then do everything."""
    if is_loopback(listener):
        return
    with database.read() as tx:
        if is_required(tx):
            return
    raise InvalidConfig(
        f"{config.hub.host} can be reached from other machines, but no token exists yet; first run"
        " `onceward token create NAME --scope read --scope write` on the same data, or use 127.0.0.1"
    )


def _announce(config: Config, listener: socket.socket) -> None:
    data = config.hub.data_dir
    if is_readable_by_others(config.data_folder):
        folder = str(config.data_folder.resolve())
        command = Command(f"chmod 700 {shlex.quote(folder)}")
        log_event(_log.warning, "data_folder_is_readable_by_others", folder=folder, do=command)
    if is_key_readable_by_others(config):
        command = Command(f"chmod 600 {shlex.quote(config.hub.tls_key)}")
        log_event(_log.warning, "tls_key_is_readable_by_others", file=config.hub.tls_key, do=command)
    if config.hub.database:
        data += f", rows in {without_password(config.hub.database)}"
    # One write, so that no log line of another thread comes between the text and its newline.
    url = url_of(listener, config.hub.host, "https" if config.hub.tls_cert else "http")
    print(f"onceward: listening on {url} (data in {data})\n", end="", flush=True)  # noqa: T201


# The end.


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[Callable[[], None]]:
    """Exit silently on a signal, until the server handles signals itself.

    The `SystemExit` is lost if other code swallows it with a bare `except:`, or if Python runs the handler in a
    callback, such as one of an import. So this yields a function that exits if a signal arrived; call it just before
    the server starts. Python would print the `SystemExit` of a callback with a traceback; a hook suppresses that.
    """
    signalled = False
    unraisable_before = sys.unraisablehook

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        nonlocal signalled
        signalled = True
        raise SystemExit(0)

    def exit_if_signalled() -> None:
        if signalled:
            raise SystemExit(0)

    def on_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
        if not (signalled and isinstance(unraisable.exc_value, SystemExit)):
            unraisable_before(unraisable)

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    sys.unraisablehook = on_unraisable
    try:
        yield exit_if_signalled
    finally:
        sys.unraisablehook = unraisable_before
        for number, handler in before.items():
            signal.signal(number, handler)
