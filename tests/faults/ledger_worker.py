"""A process that uses a ledger through its public face and says where it is.

Run as `python -m tests.faults.ledger_worker EFFECTS [MACHINE]`. Orders come as JSON lines on standard input, reports go as
JSON lines to standard output. Effects are counted outside: each run of one appends `key token version` to EFFECTS.
With a MACHINE named, its claims look as if they came from another one, so nobody here can prove its death.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from onceward import Ledger, current_claim, errors, open_ledger
from onceward.ledger import holder

Order: TypeAlias = dict[str, Any]

_tokens = itertools.count(1)


class Worker:
    """Carries out one order after the other."""

    def __init__(self, effects: Path) -> None:
        self._effects = effects
        self._ledgers: dict[tuple[str, float], Ledger] = {}

    def ledger(self, order: Order) -> Ledger:
        """Return the ledger for this URL and lease, which stays open from order to order."""
        wanted = (order["url"], order.get("lease", 30.0))
        if wanted not in self._ledgers:
            url, lease_seconds = wanted
            self._ledgers[wanted] = open_ledger(url, lease_seconds=lease_seconds, wait_seconds=30.0)
        return self._ledgers[wanted]

    def effect(self, order: Order) -> Callable[[], str]:
        """Return an effect that counts its run, reports, pauses if ordered to, and returns a unique value."""

        def happen() -> str:
            token = f"{os.getpid()}.{next(_tokens)}"
            append(self._effects, order["key"], token)
            report(at="effect done", token=token)
            if order.get("fill_disk"):
                _limit_files(1)
            if order.get("pause"):
                sys.stdin.readline()
            return token

        return happen

    def run(self, order: Order) -> None:
        """The key through `ledger.blocking.run`, `@ledger.once` or `ledger.run`."""
        ledger, happen = self.ledger(order), self.effect(order)
        options: Any = {"effect": order["effect"]}
        with reporting(order["key"]) as result:
            match order.get("through", "blocking"):
                case "once":

                    @ledger.once(key="{key}", **options)
                    def work(key: str) -> str:
                        assert key
                        return happen()

                    result["value"] = work(order["key"])
                case "loop":

                    async def awaited() -> str:
                        return happen()  # blocks the whole event loop, as careless code does

                    result["value"] = asyncio.run(_await(ledger, order["key"], awaited, options))
                case _:
                    result["value"] = ledger.blocking.run(order["key"], happen, **options)

    def load(self, order: Order) -> None:
        """Use many keys, each until it gets a result; retry if the store is unavailable."""
        for key, effect in order["keys"]:
            one = {**order, "key": key, "effect": effect}
            for _ in range(order.get("tries", 1)):
                with reporting(key) as result:
                    result["value"] = self.ledger(one).blocking.run(key, self.effect(one), effect=effect)
                if result.get("error") != errors.StoreUnavailable.code:
                    break
        report(done="load")

    def fork(self, order: Order) -> None:
        """Use the ledger, keep using it on another thread, and fork children that use it too."""
        ledger = self.ledger(order)
        ledger.blocking.run("before", self.effect({"key": "before"}), effect="irreversible")
        over = threading.Event()
        thread = threading.Thread(target=_keep_busy, args=(ledger, over))
        thread.start()
        children = [
            self._child(order, [f"child {number}", "shared"], lambda: None, []) for number in range(order["children"])
        ]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        over.set()
        thread.join()
        value = ledger.blocking.run("shared", self.effect({"key": "shared"}), effect="irreversible")
        report(key="shared", value=value)
        report(done="fork", codes=codes)

    def fork_and_close(self, order: Order) -> None:
        """Fork a child that goes on after its parent has closed the ledger that both came from."""
        ledger = self.ledger(order)
        ledger.blocking.run("before", self.effect({"key": "before"}), effect="irreversible")
        working, closed = os.pipe(), os.pipe()

        def between() -> None:
            os.write(working[1], b".")
            os.read(closed[0], 1)

        child = self._child(order, ["child, before"], between, ["child, after"])
        os.read(working[0], 1)
        ledger.close()
        os.write(closed[1], b".")
        os.waitpid(child, 0)
        report(done="fork")

    def _child(self, order: Order, first: list[str], between: Callable[[], None], then: list[str]) -> int:
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            for key in first:
                self.run({**order, "key": key, "effect": "irreversible"})
            between()
            for key in then:
                self.run({**order, "key": key, "effect": "irreversible"})
            code = 0
        finally:
            os._exit(code)

    def limit(self, order: Order) -> None:
        _limit_files(order["bytes"])
        report(done="limit")


@contextmanager
def reporting(key: str) -> Iterator[dict[str, Any]]:
    """Report the answer put inside, or the code of the error that was raised instead."""
    result: dict[str, Any] = {"key": key}
    try:
        yield result
    except errors.OncewardError as error:
        result["error"] = error.code
    report(**result)


def report(**values: object) -> None:
    """One write, so that reports of several processes on one pipe do not mix."""
    os.write(1, json.dumps(values).encode() + b"\n")


def append(effects: Path, key: str, token: str) -> None:
    """One run of an effect, counted outside."""
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{key} {token} {current_claim().version}\n".encode())
    os.close(file)


def _limit_files(most_bytes: int | None) -> None:
    """Limit the file size of this process, which acts like a full disk."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if most_bytes is None else most_bytes, most))


async def _await(ledger: Ledger, key: str, effect: Callable[[], Any], options: Any) -> Any:
    return await ledger.run(key, effect, **options)


def _keep_busy(ledger: Ledger, over: threading.Event) -> None:
    for number in itertools.count():
        if over.is_set():
            return
        ledger.blocking.run(f"busy {os.getpid()} {number}", lambda: None, effect="pure")


def main(effects: str, machine: str = "") -> None:
    if machine:
        holder._boot_and_namespace = lambda: machine
    worker = Worker(Path(effects))
    report(at="ready")
    for line in sys.stdin:
        order: Order = json.loads(line)
        getattr(worker, order["do"])(order)


if __name__ == "__main__":
    main(*sys.argv[1:])
