"""`onceward serve`: everything is checked and made ready, then one process answers, or several behind one socket.

Stopping is in order: no new connections, streams end themselves with the id to resume from, requests under way are
finished, and all of that within `grace_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Protocol

import uvicorn

from onceward.db.engine import Database
from onceward.errors import InvalidConfig
from onceward.hub.config import Config
from onceward.hub.data import opened
from onceward.hub.frames import FramesProtocol, HttpProtocol
from onceward.hub.metrics import forget_worker
from onceward.hub.observe import configure
from onceward.hub.setting import without_password
from onceward.hub.tokens import any_live
from onceward.hub.workers import STOP_SIGNALS, Crew
from onceward.store.open import open_store

# Makes the application, in the process that serves it. Importable by name, for workers.
Factory = Callable[[Config], Any]

BACKLOG = 2048
# Longer than clients and proxies keep an idle connection, so that they close it first: a request that crosses our
# closing would be lost.
KEEP_ALIVE_SECONDS = 75
# After the grace there is still this long to close files and connections; then the process ends whatever it is doing.
CLOSE_SECONDS = 5.0
# How long bytes may go unanswered by a client's machine. Never less than a client may stand still.
GONE_SECONDS = 120
_FAILED = 1
_METRICS = "PROMETHEUS_MULTIPROC_DIR"


class _Streams(Protocol):
    """What this module knows of the hub's state."""

    async def stop_streams(self) -> None: ...


def serve(config: Config, factory: Factory | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises `InvalidConfig` and the stores' errors before anything is served.

    `factory` makes another application than the hub's own.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        listener = stack.enter_context(_bound(config))
        with opened(config) as database:
            _check_tokens(config, listener, database)
        # Only its URL and driver are looked at: a store connects on first use.
        open_store(config.ledger_url).close()
        _listen(config, listener)
        configure(config.hub.log_format, config.hub.log_level)
        if config.hub.workers == 1:
            _Server(config, factory, lambda: _announce(config, listener)).serve_on(listener)
        else:
            stack.enter_context(_shared_metrics(config))
            _serve_by_many(config, factory, listener)


class _Server(uvicorn.Server):
    """uvicorn's own, which also says when it is ready, ends streams first and never stops for longer than it may."""

    def __init__(self, config: Config, factory: Factory | None, on_ready: Callable[[], None]) -> None:
        super().__init__(_uvicorn_config(config, factory))
        self._grace_seconds = config.hub.grace_seconds
        self._on_ready = on_ready

    def serve_on(self, listener: socket.socket) -> None:
        # uvicorn raises a signal again once it has handled it; it must then find nothing left to do.
        for number in STOP_SIGNALS:
            signal.signal(number, self.handle_exit)
        try:
            self.run([listener])
        except SystemExit:
            # The reason was logged where it arose.
            raise SystemExit(_FAILED) from None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        last = threading.Timer(self._grace_seconds + CLOSE_SECONDS, _end_at_once)
        last.daemon = True
        last.start()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._grace_seconds
        for server in self.servers:
            server.close()
        streams: _Streams | None = self.lifespan.state.get("hub")
        try:
            if streams is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(streams.stop_streams(), self._grace_seconds)
        finally:
            # mypy knows a whole number here; uvicorn only hands it to asyncio.
            self.config.timeout_graceful_shutdown = max(0.0, end - loop.time())  # type: ignore[assignment]
            await super().shutdown(sockets)


def _uvicorn_config(config: Config, factory: Factory | None) -> uvicorn.Config:
    if factory is None:
        from onceward.hub.app import create_app  # noqa: PLC0415  # only where it is served

        factory = create_app
    level = config.hub.log_level
    return uvicorn.Config(
        factory(config),
        http=HttpProtocol,
        ws=FramesProtocol,
        ws_max_size=config.hub.max_body_bytes,
        # A slow reader finds a ping only behind everything that it has yet to read, and would be cut off for that. The
        # feed looks after those that stand still, and the system after those that are gone.
        ws_ping_interval=None,
        ws_ping_timeout=None,
        # Events are small and many; compressing each costs more than it saves.
        ws_per_message_deflate=False,
        lifespan="on",
        interface="asgi3",
        # Logging is the hub's own, one line for each request; what uvicorn has to say beside that is for debugging.
        log_config=None,
        log_level="warning" if level == "info" else level,
        access_log=False,
        # Who a client is must not depend on a header that anybody can send.
        proxy_headers=False,
        server_header=False,
        workers=1,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


# Several processes.


def _serve_by_many(config: Config, factory: Factory | None, listener: socket.socket) -> None:
    crew = Crew(
        count=config.hub.workers,
        work=_work,
        given=(config, factory, listener),
        stop_seconds=config.hub.grace_seconds + 2 * CLOSE_SECONDS,
        on_ready=lambda: _announce(config, listener),
        # While it is open here, the system goes on accepting connections that nobody will answer.
        on_stop=listener.close,
        on_gone=forget_worker,
    )
    if not asyncio.run(crew.run()):
        raise SystemExit(_FAILED)


def _work(config: Config, factory: Factory | None, listener: socket.socket, parent: Connection) -> None:
    """What a worker process runs."""
    with _ended_by_signals():
        # The parent held it back until there was a handler.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        configure(config.hub.log_format, config.hub.log_level)
        server = _Server(config, factory, lambda: _report(parent, server))
        server.serve_on(listener)


def _report(parent: Connection, server: _Server) -> None:
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
    folder = tempfile.mkdtemp(prefix="metrics-", dir=config.data_folder)
    os.environ[_METRICS] = folder
    try:
        yield
    finally:
        del os.environ[_METRICS]
        shutil.rmtree(folder, ignore_errors=True)


# The address.


@contextlib.contextmanager
def _bound(config: Config) -> Iterator[socket.socket]:
    """A socket at the address, which nobody can connect to yet."""
    host, port = config.hub.host, config.hub.port
    try:
        # Names stand for several addresses; IPv4 is what clients try when a name is all they have.
        found = sorted(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"hub.host: {host!r} is no address of this machine ({error})") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as listener:
        # An address that was just in use may be taken again at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _forget_the_gone(config, listener)
        with _explained(config):
            listener.bind(address)
        yield listener


def _forget_the_gone(config: Config, listener: socket.socket) -> None:
    """A client whose machine is gone is noticed in minutes, not in a quarter of an hour. Connections inherit this."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        seconds = int(max(GONE_SECONDS, 2 * config.events.stall_seconds))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, GONE_SECONDS // 2)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)


def _listen(config: Config, listener: socket.socket) -> None:
    with _explained(config):
        listener.listen(BACKLOG)


@contextlib.contextmanager
def _explained(config: Config) -> Iterator[None]:
    host, port = config.hub.host, config.hub.port
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is taken by another program; stop that one, or choose another with --port"
        elif error.errno == errno.EACCES:
            reason = f"port {port} needs more rights than this user has; choose one from 1024 with --port"
        elif error.errno == errno.EADDRNOTAVAIL:
            reason = f"{host} is no address of this machine; choose another with --host"
        else:
            reason = f"cannot listen on port {port} of {host}: {error.strerror}"
        raise InvalidConfig(reason) from None


def _check_tokens(config: Config, listener: socket.socket, database: Database) -> None:
    """Without tokens everybody who reaches the hub may do everything, so only this machine may reach it."""
    if ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback:
        return
    with database.read() as tx:
        if any_live(tx):
            return
    raise InvalidConfig(
        f"{config.hub.host} can be reached from other machines, and there is no token yet; first run"
        " `onceward token create NAME --scope read --scope write` on the same data, or stay on 127.0.0.1"
    )


def url_of(listener: socket.socket, host: str) -> str:
    """How the hub is called. The port is the real one, also when the system was asked to choose."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _announce(config: Config, listener: socket.socket) -> None:
    data = config.hub.data_dir
    if config.hub.database:
        data += f", rows in {without_password(config.hub.database)}"
    print(f"onceward: listening on {url_of(listener, config.hub.host)} (data in {data})", flush=True)  # noqa: T201


# The end.


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Until there is a server that stops in order, a signal ends the program where it is, without complaint."""
    before = {number: signal.signal(number, _leave) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _end_at_once() -> None:
    print("onceward: still busy after the grace period; ended at once", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(_FAILED)
