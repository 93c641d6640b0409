"""A program of a user, on a system that has neither forks nor /proc, file locks, POSIX signals or readers of many files.

Started by `test_without_posix.py`, in a process of its own: what it takes away stays away.
"""

# ruff: noqa: E402

from __future__ import annotations

import builtins
import importlib.abc
import io
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_MISSING_MODULES = frozenset({"fcntl", "resource", "pwd", "grp", "termios", "_posixshmem"})
_MISSING_IN_OS = (
    *("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "getegid", "setuid", "killpg", "getpgid"),
    *("sched_getaffinity", "sched_setaffinity", "sched_yield", "mkfifo", "chown", "fchown", "fchmod", "uname", "wait"),
    *("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "waitid", "wait3", "wait4"),
)
_SIGNALS_LEFT = frozenset({"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV"})


class _NotHere(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        del path, target
        if name in _MISSING_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _without_proc(real: Callable[..., Any]) -> Callable[..., Any]:
    def without_proc(path: Any, *more: Any, **named: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return real(path, *more, **named)

    return without_proc


def _socketpair(*_: object) -> tuple[socket.socket, socket.socket]:
    """`socketpair` as Python implements it without UNIX sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def take_away() -> None:
    for name in _MISSING_MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _NotHere())
    for name in _MISSING_IN_OS:
        if hasattr(os, name):
            delattr(os, name)
    for name in dir(signal):
        if (name.startswith("SIG") and not name.startswith("SIG_") and name not in _SIGNALS_LEFT) or "pthread" in name:
            delattr(signal, name)
    for name in ("poll", "epoll", "kqueue"):
        if hasattr(select, name):
            delattr(select, name)
    del socket.AF_UNIX
    socket.socketpair = _socketpair  # type: ignore[assignment]
    io.open = builtins.open = _without_proc(builtins.open)
    for name in ("open", "readlink", "listdir", "scandir", "stat"):
        setattr(os, name, _without_proc(getattr(os, name)))


take_away()

import asyncio
import contextlib
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx

from onceward import IdempotencyMiddleware, errors, open_ledger
from onceward.http import WSGIIdempotencyMiddleware
from onceward.http.client import AsyncRetryTransport, RetryTransport
from onceward.ledger.holder import holder, proved_dead
from onceward.tools.tool import tool
from onceward.tools.toolbox import Toolbox

KEY = {"Idempotency-Key": "order-1"}


def a_ledger(folder: Path) -> None:
    ran: list[str] = []
    url = f"sqlite:///{folder}/ledger.db"

    def effect() -> str:
        ran.append("ran")
        return "paid"

    with open_ledger(url) as ledger:
        first = ledger.blocking.run("order-1", effect, effect="irreversible")
    with open_ledger(url) as ledger:
        again = ledger.blocking.run("order-1", effect, effect="irreversible")
        awaited = asyncio.run(ledger.run("order-1", effect, effect="irreversible"))
        claim = asyncio.run(ledger.begin("scope", "held", repeatable=True))
        busy = asyncio.run(ledger.begin("scope", "held", repeatable=True))
    assert (first, again, awaited, ran) == ("paid", "paid", "paid", ["ran"])
    assert type(claim).__name__ == "Claim"
    assert type(busy).__name__ == "Busy", "a death that cannot be proved is left to the lease"
    assert holder().startswith("?")
    assert not proved_dead(holder())
    assert not proved_dead("boot/namespace/1/2")


def asgi(folder: Path) -> None:
    runs: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive
        runs.append(scope["path"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"made"})

    async def main() -> list[httpx.Response]:
        guarded = IdempotencyMiddleware(app, store=f"sqlite:///{folder}/asgi.db")
        transport = AsyncRetryTransport(httpx.ASGITransport(guarded))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.post("/orders", headers=KEY) for _ in range(2)]

    first, again = asyncio.run(main())
    assert (first.status_code, again.status_code, first.content, again.content) == (201, 201, b"made", b"made")
    assert (again.headers["idempotent-replayed"], runs) == ("true", ["/orders"])


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None: ...


def wsgi(folder: Path) -> None:
    runs: list[str] = []

    def app(environ: Any, start: Any) -> list[bytes]:
        runs.append(environ["PATH_INFO"])
        start("201 Created", [])
        return [b"made"]

    guarded = WSGIIdempotencyMiddleware(app, store=f"sqlite:///{folder}/wsgi.db")
    with make_server("127.0.0.1", 0, guarded, handler_class=_Silent) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        with contextlib.ExitStack() as stack:
            stack.callback(serving.join)
            stack.callback(server.shutdown)
            client = stack.enter_context(httpx.Client(transport=RetryTransport(), trust_env=False))
            first, again = (client.post(f"http://127.0.0.1:{server.server_port}/o", headers=KEY) for _ in range(2))
    assert (first.content, again.content, again.headers["idempotent-replayed"]) == (b"made", b"made", "true")
    assert runs == ["/o"]


def tools(folder: Path) -> None:
    refunds: list[str] = []

    @tool(effect="irreversible", key_fields=["order_id"])
    async def refund(order_id: str) -> dict[str, str]:
        """Refund an order."""
        refunds.append(order_id)
        return {"refunded": order_id}

    async def main() -> list[str]:
        with open_ledger(f"sqlite:///{folder}/tools.db") as ledger:
            box = Toolbox([refund])
            calls = [
                await box.call("refund", {"order_id": "7"}, ledger=ledger, turn_group_id="group") for _ in range(2)
            ]
        return [call.status.value for call in calls]

    assert asyncio.run(main()) == ["done", "replayed"]
    assert refunds == ["7"]


def other_stores() -> None:
    """Check that the other stores get as far as connecting."""
    for url in ("postgresql://u@127.0.0.1:9/d", "redis://127.0.0.1:9"):
        with open_ledger(url) as ledger:
            try:
                ledger.blocking.read("scope", "key")
            except errors.StoreUnavailable:
                continue
        raise AssertionError(url)


for step in (a_ledger, asgi, wsgi, tools):
    step(Path(sys.argv[1]))
other_stores()
print("done")  # noqa: T201
