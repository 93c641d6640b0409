"""Responses of long operations: one JSON object, or lines of JSON with the progress before it.

A client that sends `Accept: application/x-ndjson` gets one JSON object in each line:

    {"progress": {"done": 1200, "total": 5000, "unit": "files"}}    at most two in a second
    {"result": {…}}                                                 last; the body that other clients get
    {"problem": {…}}                                                last, instead of a result

The status is sent with the first line, so an operation that fails before any progress has an ordinary problem response.
One that fails later ends with a problem line, and its idempotency key is released: a retry runs it again.
"""

from __future__ import annotations

import contextvars
import functools
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from onceward.http.keyed.operation import idempotency
from onceward.hub.web.problems import response_to

MEDIA_TYPE = "application/x-ndjson"
# The interval between two lines of progress.
_LINE_SECONDS = 0.5

# Takes the number done, and the total if it is known.
Report: TypeAlias = Callable[[int, int | None], None]
Work: TypeAlias = Callable[[Report], Mapping[str, Any]]


def long_response(request: Request, unit: str, work: Work) -> Response:
    """Do the work and return its result, or return a response that reports its progress while it is done.

    Args:
        request: The request.
        unit: The unit of the progress: `files`, `bytes` or `tasks`.
        work: The operation. It is called in a thread, with a function that takes its progress.

    Returns:
        The response.

    Raises:
        Exception: An exception of the work before its first progress.
    """
    if MEDIA_TYPE not in request.headers.get("accept", ""):
        return JSONResponse(work(lambda _done, _total: None))
    running = _Running(unit, work)
    first = running.lines.get()
    if isinstance(first, Exception):
        raise first
    return StreamingResponse(_lines(request, running, first), media_type=MEDIA_TYPE)


class _Running:
    """A work in a thread of its own. It goes on if the client disconnects, as any other request does."""

    def __init__(self, unit: str, work: Work) -> None:
        # Lines, then a result or an exception.
        self.lines: queue.SimpleQueue[Mapping[str, Any] | Exception] = queue.SimpleQueue()
        self._unit = unit
        self._work = work
        self._next_at = 0.0
        # With the request id in its log lines.
        run = functools.partial(contextvars.copy_context().run, self._run)
        threading.Thread(target=run, name="onceward-long-operation", daemon=True).start()

    def _run(self) -> None:
        try:
            self.lines.put({"result": self._work(self._report)})
        except Exception as error:  # noqa: BLE001  # the thread that sends the response raises or reports it
            self.lines.put(error)

    def _report(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _LINE_SECONDS
            self.lines.put({"progress": {"done": done, "total": total, "unit": self._unit}})


def _lines(request: Request, running: _Running, first: Mapping[str, Any]) -> Iterator[bytes]:
    line: Mapping[str, Any] | Exception = first
    while not isinstance(line, Exception):
        yield json.dumps(line).encode() + b"\n"
        if "result" in line:
            return
        line = running.lines.get()
    idempotency(request).release()
    yield json.dumps({"problem": json.loads(response_to(line).body)}).encode() + b"\n"


def running_total(report: Report, total: int) -> Callable[[int], None]:
    """Return a function that takes increments, and reports their sum and the total."""
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        # Files that came since the total was read.
        report(done, max(total, done))

    return more
