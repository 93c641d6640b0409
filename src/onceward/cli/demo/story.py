"""The story of the demo: three payments, two kills, and one charge for each payment."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

from onceward.cli.demo.bank import Bank, running_bank
from onceward.cli.demo.shop import UNKEYED
from onceward.http.client import RetryTransport

# The client gives up after this; the demo takes a few seconds.
_DEADLINE_SECONDS = 30.0
_KEYED = "/pay"


@dataclass(frozen=True, slots=True)
class StoryPrinter:
    """Prints the story: headings, what happens, and results."""

    heading: Callable[[str], None]
    line: Callable[[str], None]
    result: Callable[[str], None]


class Failed(Exception):
    """Something did not happen as the demo promises."""


def run_story(printer: StoryPrinter, at_end: Callable[[str], None] | None = None) -> None:
    """Run the demo in a temporary folder, which is removed at the end.

    Args:
        printer: Prints the story.
        at_end: Called at the end with the URL of the ledger, which has one more doubt then. The shop still runs.

    Raises:
        Failed: A result was not as promised.
    """
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as folder, running_bank() as (bank, address):
        ledger = _Ledger(Path(folder))
        with _Shop(address, ledger) as shop, _client(shop.url) as client:
            _duplicate(printer, bank, client)
            _crash(printer, bank, shop, client)
            _doubt(printer, bank, shop, client, ledger)
            printer.heading("The bank's journal")
            for charge, order in bank.charges.items():
                printer.line(f"{charge}  {order}")
            _require(list(bank.charges.values()) == ["order-1", "order-2", "order-3"], "one charge for each order")
            printer.result("3 payments, 2 kills: 3 charges.")
            if at_end is not None:
                _one_more_doubt(printer, bank, shop, client)
                at_end(ledger.url)


def _duplicate(printer: StoryPrinter, bank: Bank, client: httpx.Client) -> None:
    printer.heading("1. A payment, sent twice")
    first = _pay(client, _KEYED, "order-1")
    printer.line(f"POST /pay order-1, Idempotency-Key: pay-order-1   -> {_shown(first)}")
    again = _pay(client, _KEYED, "order-1")
    printer.line(f"the same request again                            -> {_shown(again)}")
    _require(first.content == again.content and _is_replay(again), "the recorded response")
    printer.result(f"The second response is the recorded one. Charges for order-1: {len(bank.charges_of('order-1'))}")


def _crash(printer: StoryPrinter, bank: Bank, shop: _Shop, client: httpx.Client) -> None:
    printer.heading("2. The shop is killed while it charges the card")
    bank.pause("order-2")
    printer.line("POST /pay order-2: the shop calls the bank, and the bank books the charge")
    with _in_background(lambda: _pay(client, _KEYED, "order-2")) as finished:
        _require(bank.wait_until_booked("order-2"), "a booked charge")
        printer.line(f"kill -9 {shop.pid}: the shop is gone before the bank has answered")
        shop.kill()
        bank.resume("order-2")
        printer.line("the client's transport retries with the same key; the shop starts again")
        shop.start()
        answer = finished()
    printer.line(f"the retry                                         -> {_shown(answer)}")
    charges = bank.charges_of("order-2")
    _require(answer.json()["charge"] in charges and len(charges) == 1, "one charge for order-2")
    printer.result(f"The retry ran again with the same key at the bank. Charges for order-2: {len(charges)}")


def _doubt(printer: StoryPrinter, bank: Bank, shop: _Shop, client: httpx.Client, ledger: _Ledger) -> None:
    printer.heading("3. The same, with a bank that has no idempotency keys")
    bank.pause("order-3")
    with _in_background(lambda: _pay(client, UNKEYED, "order-3", retries=False)) as finished:
        _require(bank.wait_until_booked("order-3"), "a booked charge")
        printer.line(f"POST {UNKEYED} order-3: the bank books the charge; kill -9 {shop.pid}")
        shop.kill()
        bank.resume("order-3")
        shop.start()
        finished()
    refused = _pay(client, UNKEYED, "order-3")
    printer.line(f"a retry                                           -> {_shown(refused)}")
    _require(refused.status_code == httpx.codes.CONFLICT, "a refusal")
    _require(len(bank.charges_of("order-3")) == 1, "no second charge")
    printer.result("The shop cannot know whether the card was charged, so it does not charge it again: in doubt.")
    (claim,) = ledger.command("list", "--status", "in_doubt")["claims"]
    (charge,) = bank.charges_of("order-3")
    printer.line(f"an operator asks the bank: the journal has {charge} for order-3")
    body = json.dumps({"order": "order-3", "charge": charge})
    version, reason = str(claim["version"]), f"{charge} is in the bank's journal"
    printer.line(f"$ onceward claims resolve {claim['scope']} {claim['key']} --version {version} --committed \\")
    printer.line(f"      --status 201 --header 'Content-Type: application/json' --body '{body}' \\")
    printer.line(f'      --reason "{reason}" --ledger sqlite:///ledger.db --namespace onceward')
    resolution = ("--committed", "--status", "201", "--body", body, "--header", "Content-Type: application/json")
    ledger.command("resolve", claim["scope"], claim["key"], "--version", version, *resolution, "--reason", reason)
    answer = _pay(client, UNKEYED, "order-3")
    printer.line(f"the next retry                                    -> {_shown(answer)}")
    _require(answer.json() == json.loads(body) and _is_replay(answer), "the operator's response")
    printer.result(f"The client gets the result. Charges for order-3: {len(bank.charges_of('order-3'))}")


def _one_more_doubt(printer: StoryPrinter, bank: Bank, shop: _Shop, client: httpx.Client) -> None:
    printer.heading("4. Your turn: one more doubt, in the console")
    bank.pause("order-4")
    with _in_background(lambda: _pay(client, UNKEYED, "order-4", retries=False)) as finished:
        _require(bank.wait_until_booked("order-4"), "a booked charge")
        shop.kill()
        bank.resume("order-4")
        shop.start()
        finished()
    refused = _pay(client, UNKEYED, "order-4")
    _require(refused.status_code == httpx.codes.CONFLICT, "a refusal")
    (charge,) = bank.charges_of("order-4")
    printer.line(f"a retry of order-4                                -> {_shown(refused)}")
    printer.line(
        f"the bank's journal has {charge} for order-4. Say so in the console, and then send the retry yourself:"
    )
    printer.line(f"$ curl -i {shop.url}{UNKEYED} -H 'Idempotency-Key: pay-order-4' \\")
    printer.line("      -H 'Content-Type: application/json' -d '{\"order\":\"order-4\"}'")


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The shop's ledger, in the demo's folder."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.folder / 'ledger.db'))}"

    def command(self, *arguments: str) -> Any:
        """Run a command of `onceward claims` on the ledger, without the user's settings, and return its JSON."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
        done = subprocess.run(  # noqa: S603  # our own command
            [
                sys.executable,
                "-m",
                "onceward",
                "claims",
                *arguments,
                "--ledger",
                self.url,
                "--namespace",
                "onceward",
                "--json",
            ],
            capture_output=True,
            check=False,
            cwd=self.folder,
            env=environ,
        )
        _require(done.returncode == 0, done.stderr.decode(errors="replace") or "exit code 0")
        return json.loads(done.stdout)


class _Shop:
    """The shop's process, and the socket on which it listens, which outlives the process."""

    def __init__(self, bank: str, ledger: _Ledger) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._folder = ledger.folder
        arguments = [str(self._listener.fileno()), bank, ledger.url]
        self._command = [sys.executable, "-m", "onceward.cli.demo.shop", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            self._command,
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            pass_fds=[self._listener.fileno()],
        )

    def kill(self) -> None:
        """Kill -9. Connections that the shop has accepted break; new ones wait for its successor."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._listener.close()


@contextmanager
def _client(url: str) -> Iterator[httpx.Client]:
    transport = RetryTransport(deadline_seconds=_DEADLINE_SECONDS)
    with httpx.Client(base_url=url, transport=transport, timeout=_DEADLINE_SECONDS, trust_env=False) as client:
        yield client


def _pay(client: httpx.Client, path: str, order: str, *, retries: bool = True) -> httpx.Response:
    """Pay an order under its own key. Without `retries`, the client is one that gives up when the connection breaks."""
    key = {"Idempotency-Key": f"pay-{order}"}
    if retries:
        return client.post(path, json={"order": order}, headers=key)
    with httpx.Client(base_url=client.base_url, timeout=_DEADLINE_SECONDS, trust_env=False) as impatient:
        try:
            return impatient.post(path, json={"order": order}, headers=key)
        except httpx.TransportError:
            return httpx.Response(httpx.codes.BAD_GATEWAY)


@contextmanager
def _in_background(send: Callable[[], httpx.Response]) -> Iterator[Callable[[], httpx.Response]]:
    """Send a request from a thread, and yield a function that waits for its response."""
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(send()), daemon=True)
    thread.start()

    def finished() -> httpx.Response:
        thread.join(_DEADLINE_SECONDS)
        _require(bool(found), "a response")
        return found[0]

    yield finished


def _is_replay(answer: httpx.Response) -> bool:
    return "Idempotent-Replayed" in answer.headers


def _shown(answer: httpx.Response) -> str:
    if answer.is_success:
        return f"{answer.status_code} {answer.json()['charge']}{', replayed' if _is_replay(answer) else ''}"
    return f"{answer.status_code} {answer.json()['code']}"


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(f"the demo expected {what}")
