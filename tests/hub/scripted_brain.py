"""A brain that does what it is told, line by line, and a bank outside of it that writes down what it pays.

say TEXT        a part of the answer
hold FIFO       waits until somebody writes to the FIFO
refund ORDER    calls the irreversible tool
keep ORDER FIFO the same, with the money paid only then
fail            raises, as long as the file beside the outside world says so
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

from onceward.turns import Brain, Context, Toolbox, tool

OUTSIDE = Path(os.environ.get("OUTSIDE", "outside"))


def wait_at(fifo: str) -> None:
    """One byte lets one brain continue."""
    opened = os.open(fifo, os.O_RDONLY)
    try:
        os.read(opened, 1)
    finally:
        os.close(opened)


def _pay(order_id: str) -> dict[str, str]:
    with OUTSIDE.open("a") as file:
        file.write(f"{order_id}\n")
    return {"paid": order_id}


@tool(effect="irreversible", template="order:{order_id}")
def refund(order_id: str) -> dict[str, str]:
    """Pay at once."""
    return _pay(order_id)


@tool(effect="irreversible", template="order:{order_id}")
def keep(order_id: str, fifo: str) -> dict[str, str]:
    """Pay after a byte was written to the FIFO."""
    with OUTSIDE.with_name("begun").open("a") as begun:
        begun.write(f"{order_id}\n")
    wait_at(fifo)
    return _pay(order_id)


@tool(effect="idempotent", template="order:{order_id}", provider_key="key")
def provide(order_id: str, fifo: str, key: str) -> dict[str, str]:
    """Pay at a provider that pays once for each order and key, however often it is called."""
    try:
        # Created once, by the first process.
        (OUTSIDE.parent / f"provider-{hashlib.sha256(key.encode()).hexdigest()}").touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        _pay(order_id)
    if fifo != "-":
        wait_at(fifo)
    return {"paid": order_id}


async def answer(context: Context) -> str:
    replies: list[str] = []
    for line in context.text.splitlines():
        word, *rest = line.split()
        match word:
            case "say":
                await context.say(" ".join(rest))
            case "hold":
                await asyncio.to_thread(wait_at, rest[0])
            case "refund":
                replies.append((await context.call("refund", order_id=rest[0])).status)
            case "keep":
                replies.append((await context.call("keep", order_id=rest[0], fifo=rest[1])).status)
            case "provide":
                replies.append((await context.call("provide", order_id=rest[0], fifo=rest[1])).status)
            case "fail" if OUTSIDE.with_name("broken").exists():
                raise RuntimeError("told to fail")
            case _:
                replies.append(line)
    return f"answered: {', '.join(replies)}"


brain = Brain(answer, toolbox=Toolbox([refund, keep, provide]))
