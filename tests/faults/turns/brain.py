"""A brain whose tools have external effects: a file for each order, with a line for each effect.

A message is `refund ORDER`, `provide ORDER` or `reserve ORDER`. With `instead` after it, it replaces the earlier
messages of its beat. The metadata of a message may have the wanted decision about the turn that it interrupts.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

from onceward.core.verdict import Committed, Final, NotCommitted, Verdict
from onceward.turns import Brain, CallStatus, Context, Decision, Message, Toolbox, Turn, UserMessage, tool

WORLD = "ONCEWARD_TEST_WORLD"
# How long it thinks at most, between two calls: long enough to be interrupted or killed in the middle.
THOUGHT_SECONDS_MAX = "ONCEWARD_TEST_THOUGHT_SECONDS_MAX"
TOOL_SECONDS_MAX = 0.02

_never = threading.Event()


class WorldEntry(NamedTuple):
    """A recorded external effect; `sign` is `-` if it was undone."""

    at: int
    sign: str
    key: str


def wanted(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the tool and the order of each effect that these messages request."""
    lines = [line.split() for line in texts]
    first = max((place for place, line in enumerate(lines) if line[2:] == ["instead"]), default=0)
    return [(line[0], line[1]) for line in lines[first:]]


def world_entries(world: Path, order_id: str) -> list[WorldEntry]:
    """Return the effects of an order, in order."""
    path = world / order_id
    return _read(path.read_text("utf-8")) if path.exists() else []


def _read(text: str) -> list[WorldEntry]:
    return [WorldEntry(int(at), sign, key) for at, sign, key in (line.split() for line in text.splitlines())]


@contextmanager
def _order(order_id: str) -> Iterator[tuple[TextIO, list[WorldEntry]]]:
    """Open the file under a lock, which ends with the process."""
    _never.wait(random.uniform(0, TOOL_SECONDS_MAX))
    with (Path(os.environ[WORLD]) / order_id).open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file, _read(file.read())
    _never.wait(random.uniform(0, TOOL_SECONDS_MAX))


def _append(file: TextIO, sign: str, key: str) -> None:
    # One system call, so that a kill leaves a whole line or none. The clock is the same in all processes.
    os.write(file.fileno(), f"{time.monotonic_ns()} {sign} {key}\n".encode())


def was_paid(order_id: str) -> Verdict:
    with _order(order_id) as (_, done):
        return Committed({"paid": order_id}) if done else NotCommitted(Final.PROVIDER_FINAL)


@tool(effect="irreversible", template="order:{order_id}", reconcile=was_paid)
def refund(order_id: str) -> dict[str, str]:
    """Pay on every call."""
    with _order(order_id) as (file, _):
        _append(file, "+", "refund")
    return {"paid": order_id}


@tool(effect="idempotent", template="order:{order_id}", provider_key="key")
def provide(order_id: str, key: str) -> dict[str, str]:
    """Pay once for each key."""
    with _order(order_id) as (file, done):
        if key not in {entry.key for entry in done}:
            _append(file, "+", key)
    return {"paid": order_id}


def release(order_id: str, key: str) -> None:
    with _order(order_id) as (file, done):
        if [entry.sign for entry in done if entry.key == key] == ["+"]:
            _append(file, "-", key)


@tool(effect="compensatable", template="order:{order_id}", undo=release, provider_key="key")
def reserve(order_id: str, key: str) -> dict[str, str]:
    """Reserve on every call."""
    with _order(order_id) as (file, _):
        _append(file, "+", key)
    return {"reserved": order_id}


async def _pause() -> None:
    seconds_max = float(os.environ[THOUGHT_SECONDS_MAX])
    await asyncio.sleep(random.uniform(0, random.choice((seconds_max, seconds_max / 20))))


async def answer(context: Context) -> dict[str, object]:
    """Return a different answer in each run, so that a caller can detect two answers."""
    todo = wanted([message.content for message in context.messages])
    for name, order_id in todo:
        await _pause()
        envelope = await context.call(name, order_id=order_id)
        while envelope.status is CallStatus.IN_PROGRESS:
            envelope = await context.call(name, order_id=order_id)
        if not envelope.ok:
            raise RuntimeError(f"{order_id} is {envelope.status}: {envelope.detail}")
    await _pause()
    return {"orders": [order_id for _, order_id in todo], "run": uuid.uuid4().hex}


def decide(_turn: Turn, _messages: Sequence[Message], new: UserMessage) -> Decision | None:
    mood = new.metadata.get("mood")
    return None if mood is None else Decision(str(mood))


brain = Brain(answer, toolbox=Toolbox([refund, provide, reserve]), decide=decide)
