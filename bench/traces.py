"""Traces of six code paths through the package: the functions and modules of one request, and the time they take.

python -m bench.traces              all six, about a minute
python -m bench.traces --only chat  one of them; may be repeated

This tool compares commits, so it imports names that have not moved; `_moved` finds the two that have.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import importlib
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tests.servers.postgres import PostgresServer

from bench.http.plain import App, Message, Runs, plain_app
from bench.peers.process import ROOT
from bench.profiles import Function, Profiles
from bench.table import heading
from onceward import IdempotencyMiddleware, open_ledger
from onceward.turns import Brain, Context, Toolbox, tool

# Short rounds: on a busy machine the median of many is more stable than the mean of a long one.
ROUNDS = 9
ROUND_SECONDS = 0.3
PROFILED_REQUESTS = 200
# Requests before the measurement, to fill caches, start threads and open connections.
WARM_REQUESTS = 20
FUNCTIONS_SHOWN = 12
UPLOAD_LINES = 128  # of 32 bytes: 4 KiB

_ABOUT = """\
{machine}.

* **µs**: time per request without the profiler, the median of {rounds} rounds of {seconds:g} s. **fastest**: the fastest
  round. **CPU µs**: the processor time of all threads, the median.
* **calls**: calls of Python functions in all threads. Nine of ten of {requests} profiled requests make at least this many.
  Resuming a coroutine counts as a call. Timers add calls: chat reads the state of its turn every 30 ms while it waits.
* **functions, modules**: those of `onceward` that nine of ten requests call.
* **own µs**: processor time per request under the profiler, which adds about 0.5 µs for each call of the function and for
  each call that it makes. C functions count for their caller.
"""
_COLUMNS = ["µs", "fastest", "CPU µs", "calls", "calls in onceward", "own time in onceward", "functions", "modules"]
_JSON = (b"content-type", b"application/json")
_FORM = (b"content-type", b"multipart/form-data; boundary=limit")

T = TypeVar("T")
Request: TypeAlias = Callable[[], Awaitable[None]]
# Time and processor time per request.
Round: TypeAlias = tuple[float, float]


def _moved(module: str, name: str) -> Any:
    """Import a name from the hub, or from its place before it moved there: this tool also runs on older commits."""
    for package in ("onceward.hub", "onceward"):
        with suppress(ModuleNotFoundError):
            return getattr(importlib.import_module(f"{package}.{module}"), name)
    raise ModuleNotFoundError(f"{module}.{name} is neither in onceward.hub nor in onceward")


# The requests are numbered, so every run sends the same bytes, and each request of a run has a different key.


@asynccontextmanager
async def _once(url: str) -> AsyncIterator[Request]:
    numbers = itertools.count()
    with closing(open_ledger(url)) as ledger:

        @ledger.once(key="order:{order_id}", effect="irreversible")
        async def pay(order_id: str, amount: int) -> dict[str, object]:
            return {"order_id": order_id, "paid": amount}

        async def request() -> None:
            order_id = f"{next(numbers):032x}"
            assert await pay(order_id, 10) == await pay(order_id, 10)

        yield request


class Post(NamedTuple):
    path: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (_JSON,)
    expected: bytes = b""


def _payment(_number: int) -> Post:
    return Post("/payments", b'{"amount": 10, "currency": "EUR"}')


def _entry(number: int) -> Post:
    entry = {"source": "telegram", "content_type": "thought", "clean_text": f"Buy {number} bottles of milk"}
    keys = {"idempotency_policy_key": "telegram_thought_v1", "idempotency_key_primary": f"tg:7:{number}"}
    return Post("/db/insert", json.dumps(entry | keys).encode())


def _message(number: int) -> Post:
    body = json.dumps({"message": f"{number:032x}", "session_key": f"session-{number}"}).encode()
    return Post("/chat", body, (_JSON, (b"prefer", b"wait=20")), b'"response":"done"')


def _upload(number: int) -> Post:
    if number == 0:
        return Post("/v1/tasks", b'{"id": "t1", "title": "A task"}')
    part = "--limit\r\nContent-Disposition: form-data; name="
    kind = f'{part}"kind"\r\n\r\nartifact\r\n'
    file = f'{part}"content"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\n' + f"{number:031x}\n" * UPLOAD_LINES
    return Post("/v1/tasks/t1/attachments", f"{kind}{file}\r\n--limit--\r\n".encode(), (_FORM,))


def _middleware(url: str) -> App:
    return IdempotencyMiddleware(plain_app(Runs()), store=url)


@tool(effect="irreversible", template="order:{order_id}")
def refund(order_id: str) -> dict[str, str]:
    return {"refunded": order_id}


async def _answer(context: Context) -> str:
    return (await context.call("refund", order_id=context.text)).status


brain = Brain(_answer, toolbox=Toolbox([refund]))


def _hub(folder: str) -> App:
    # Imported here: the other paths run without the hub.
    from onceward.hub.app import create_app  # noqa: PLC0415
    from onceward.hub.config import Config, HubSettings, TurnsSettings  # noqa: PLC0415

    config = Config(HubSettings(data_dir=folder), turns=TurnsSettings(brain="bench.traces:brain"))
    with closing(_moved("db.engine", "open_database")(config.database_url)) as database:
        _moved("db.migrate", "migrate")(database)
    return create_app(config)


@asynccontextmanager
async def _posting(make_app: Callable[[str], App], post: Callable[[int], Post], place: str) -> AsyncIterator[Request]:
    """Run an application with its lifespan and without a socket, and yield a function that sends a request."""
    app, numbers = make_app(place), itertools.count()
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    lifespan = asyncio.ensure_future(app({"type": "lifespan", "state": {}}, to_app.get, from_app.put))

    async def request() -> None:
        number = next(numbers)
        await _send(app, post(number), b"key-%d" % number)

    for event in ("startup", "shutdown"):
        await to_app.put({"type": f"lifespan.{event}"})
        assert (await from_app.get())["type"] == f"lifespan.{event}.complete"
        if event == "startup":
            yield request
    await lifespan


async def _send(app: App, post: Post, key: bytes) -> None:
    to_app: list[Message] = [{"type": "http.request", "body": post.body, "more_body": False}]
    from_app: list[Message] = []
    disconnect: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def receive() -> Message:
        return to_app.pop() if to_app else await disconnect

    async def send(message: Message) -> None:
        from_app.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-length", b"%d" % len(post.body)), (b"idempotency-key", key)]
    scope = {"type": "http", "http_version": "1.1", "scheme": "http", "method": "POST", "query_string": b""}
    where = {"path": post.path, "raw_path": post.path.encode(), "client": ("127.0.0.1", 50_000), "state": {}}
    await app({**scope, **where, "headers": [*headers, *post.headers]}, receive, send)
    body = b"".join(message.get("body", b"") for message in from_app)
    assert from_app[0]["status"] in {200, 201}, body
    assert post.expected in body, body


class CodePath(NamedTuple):
    title: str
    place: str
    open: Callable[[str], AbstractAsyncContextManager[Request]]


_POST = functools.partial(_posting, _middleware, _payment)
PATHS = {
    "once": CodePath("`@ledger.once` on SQLite, a fresh call and a replay", "sqlite", _once),
    "post-sqlite": CodePath("keyed POST on SQLite", "sqlite", _POST),
    "post-postgres": CodePath("keyed POST on PostgreSQL", "postgres", _POST),
    "ingest": CodePath("an entry inserted in the hub", "folder", functools.partial(_posting, _hub, _entry)),
    "chat": CodePath("a message with one tool call", "folder", functools.partial(_posting, _hub, _message)),
    "upload": CodePath("4 KiB attached to a task", "folder", functools.partial(_posting, _hub, _upload)),
}


async def time_rounds(name: str, place: str, seconds: float) -> list[Round]:
    async with _warm(name, place) as request:
        return [await _round(request, seconds) for _ in range(ROUNDS)]


async def _round(request: Request, seconds: float) -> Round:
    gc.collect()
    count = 0
    began, cpu_began = time.perf_counter(), time.process_time()
    while not count or time.perf_counter() - began < seconds:
        await request()
        count += 1
    return (time.perf_counter() - began) / count, (time.process_time() - cpu_began) / count


async def profile_requests(name: str, place: str, requests: int) -> list[Function]:
    profiles = Profiles()
    async with _warm(name, place) as request:
        profiles.begin()
        for _ in range(requests):
            await request()
            profiles.end()
        return profiles.functions()


@asynccontextmanager
async def _warm(name: str, place: str) -> AsyncIterator[Request]:
    async with PATHS[name].open(place) as request:
        for _ in range(WARM_REQUESTS):
            await request()
        yield request


def _apart(measure: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
    """Measure in a new process: profiles cannot be removed from threads, and some threads run until the process ends."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, measure, *arguments).result()


def _run(measure: Callable[..., Coroutine[Any, Any, T]], *arguments: object) -> T:
    return asyncio.run(measure(*arguments))


def render(name: str, rounds: Sequence[Round], functions: Sequence[Function]) -> tuple[str, list[str]]:
    """Return the row of a path, and the table of its functions."""
    ours = [one for one in functions if one.module]
    took, cpu = (statistics.median(column) * 1e6 for column in zip(*rounds, strict=True))
    share = sum(one.seconds for one in ours) / sum(one.seconds for one in functions)
    cells = [f"{figure:,.0f}" for figure in (took, min(rounds)[0] * 1e6, cpu)]
    cells += [f"{sum(one.calls for one in some):,}" for some in (functions, ours)]
    cells += [f"{share:.0%}", str(len(ours)), str(len({one.module for one in ours}))]
    rows = [
        f"| `{one.module}:{one.name}` | {one.calls:,} | {one.seconds * 1e6:,.1f} |" for one in ours[:FUNCTIONS_SHOWN]
    ]
    table = [f"## {name}: {PATHS[name].title}", "", *heading(["function"], ["calls", "own µs"]), *rows, ""]
    return f"| {name} | {' | '.join(cells)} |", table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.traces", description="Trace six code paths.")
    parser.add_argument("--only", action="append", choices=PATHS, help="trace only this path; may be repeated")
    parser.add_argument(
        "--seconds", type=float, default=ROUND_SECONDS, help="duration of each timed round (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    rows, tables = heading(["path"], _COLUMNS), [""]
    # On the disk, as in the other parts of the bench: in memory, a sync costs nothing.
    (ROOT / "build").mkdir(exist_ok=True)
    with ExitStack() as stack:
        server = functools.cache(lambda: stack.enter_context(PostgresServer()))

        def place(kind: str) -> str:
            if kind == "postgres":
                return server().create_database()
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="traces-"))
            return folder if kind == "folder" else f"sqlite:///{folder}/ledger.db"

        for name in options.only or PATHS:
            print(f"traces: {name}", file=sys.stderr, flush=True)
            rounds = _apart(time_rounds, name, place(PATHS[name].place), options.seconds)
            functions = _apart(profile_requests, name, place(PATHS[name].place), PROFILED_REQUESTS)
            row, table = render(name, rounds, functions)
            rows, tables = [*rows, row], [*tables, *table]
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    about = _ABOUT.format(machine=machine, rounds=ROUNDS, seconds=options.seconds, requests=PROFILED_REQUESTS)
    print("\n".join(["# Traces", "", about, *rows, *tables]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
