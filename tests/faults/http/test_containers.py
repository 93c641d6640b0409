"""Servers in two pid namespaces, as in two containers: the death of one cannot be proved from the other.

Where the machine does not let a test make namespaces, the test states and checks why, and proves nothing else.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.http.behaviour.demo_server import ANSWER_SECONDS_MAX, REPOSITORY, is_replay
from tests.waiting import until

from onceward.http.client import RetryTransport

# In a pid namespace of its own, with a /proc of its own; all of it ends with the process that made it.
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
HEADERS = {"Idempotency-Key": "k", "Authorization": "Bearer ada"}
LEASE_SECONDS = 2.0
# Messages of a machine that forbids namespaces or lacks them.
REFUSALS = ("Operation not permitted", "Permission denied", "Invalid argument", "No space left", "is not installed")


@functools.cache
def why_not() -> str:
    """Return why no pid namespace can be created here; empty if it can."""
    if shutil.which(CONTAINER[0]) is None:
        return f"{CONTAINER[0]} is not installed"
    tried = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else ""


class Containers:
    """Servers that share a store and a folder, each in its own container or in none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(2))

    def start(self, *prefix: str) -> tuple[subprocess.Popen[bytes], str]:
        listening = socket.create_server(("127.0.0.1", 0))
        number, store = str(listening.fileno()), f"sqlite:///{self._folder}/keys.db"
        command = [sys.executable, "-m", "tests.faults.http.container_server", number, store, str(self._folder)]
        process = subprocess.Popen(
            [*prefix, *command, str(LEASE_SECONDS)], cwd=REPOSITORY, pass_fds=[listening.fileno()]
        )
        self._stack.callback(self.kill, process)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.close()
        return process, url

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(ANSWER_SECONDS_MAX)

    def begin(self, url: str) -> Future[httpx.Response]:
        """Start a payment, which is still running when this returns."""
        before = self.effects
        running = self._pool.submit(post, url)
        until(lambda: self.effects > before, "nobody paid")
        return running

    def answer(self) -> None:
        (self._folder / "answer").touch()

    @property
    def effects(self) -> int:
        file = self._folder / "effects"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def close(self) -> None:
        self.answer()
        self._stack.close()


def post(url: str, transport: httpx.BaseTransport | None = None) -> httpx.Response:
    with httpx.Client(timeout=ANSWER_SECONDS_MAX, trust_env=False, transport=transport) as client:
        return client.post(url, headers=HEADERS)


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    made = Containers(tmp_path)
    yield made
    made.close()


def is_refused() -> bool:
    """Return whether this machine cannot run the test; print the reason, and check that it is one of the known ones."""
    reason = why_not()
    if reason:
        sys.stderr.write(f"no pid namespaces on this machine: {reason}\n")
        assert any(known in reason for known in REFUSALS), f"unshare failed for another reason: {reason}"
        assert os.geteuid() != 0 or "not permitted" in reason or "installed" in reason, reason
    return bool(reason)


def test_a_retry_from_another_container_waits_for_the_lease_and_its_client_waits_too(
    containers: Containers,
) -> None:
    if is_refused():
        return
    first, first_url = containers.start(*CONTAINER)
    _, second_url = containers.start(*CONTAINER)
    running = containers.begin(first_url)
    containers.kill(first)
    killed_at = time.monotonic()
    with pytest.raises(httpx.TransportError):
        running.result()

    refused = post(second_url)
    containers.answer()
    retried = post(second_url, RetryTransport())

    assert (refused.status_code, refused.headers["retry-after"]) in {(409, "1"), (409, "2")}
    assert (retried.status_code, retried.content, is_replay(retried)) == (201, b"paid", False)
    assert retried.extensions["tries"] > 1
    assert time.monotonic() - killed_at < LEASE_SECONDS + 20, "it waits for the lease, and for nothing else"
    assert containers.effects == 2


def test_a_process_with_the_same_pid_in_another_container_does_not_prove_a_death(containers: Containers) -> None:
    """Both have the pid 1 in their namespaces, and the second was started later."""
    if is_refused():
        return
    _, first_url = containers.start(*CONTAINER)
    running = containers.begin(first_url)
    _, second_url = containers.start(*CONTAINER)

    deadline = time.monotonic() + 1.5 * LEASE_SECONDS
    statuses = {post(second_url).status_code}
    while time.monotonic() < deadline:
        statuses.add(post(second_url).status_code)
    containers.answer()

    assert statuses == {409}, "the first one lives, and renews its lease"
    assert running.result().status_code == 201
    assert is_replay(post(second_url))
    assert (containers.effects, numbers(containers)) == (1, {"1"})


def numbers(containers: Containers) -> set[str]:
    lines = (containers._folder / "effects").read_text().splitlines()
    return {line.rpartition(" ")[2] for line in lines}


def test_a_retry_in_the_same_namespace_takes_over_at_once(containers: Containers) -> None:
    first, first_url = containers.start()
    _, second_url = containers.start()
    running = containers.begin(first_url)
    containers.kill(first)
    with pytest.raises(httpx.TransportError):
        running.result()
    containers.answer()

    assert post(second_url).status_code == 201
    assert containers.effects == 2


def test_a_proc_folder_of_another_namespace_proves_nothing(tmp_path: Path) -> None:
    """Without a /proc of its own, a container sees the processes of the machine under their numbers."""
    if is_refused():
        return
    code = "from onceward.ledger.holder import holder, proved_dead; print(holder(), proved_dead(holder()))"
    stale = [name for name in CONTAINER if name != "--mount-proc"]

    done = subprocess.run(
        [*stale, sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )

    assert done.stdout.split() == ["?//1/", "False"]
