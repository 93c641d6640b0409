"""Workers under load from retrying clients, which are killed one after the other; and the invariants at the end."""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from tests.faults.fork_server import ForkServer
from tests.faults.http.http_worker_process import Worker
from tests.faults.http.raw_client import RawResponse, send_request
from tests.faults.http.worker import whole_body
from tests.faults.worker_process import Effects

WORKERS = 4
CLIENTS = 32
# Everyone asks for a key at the same time as this many others.
RIVALS = 2
# The pause before a worker is killed, and before another is put in its place.
ALIVE_SECONDS = (0.5, 1.0)
GONE_SECONDS = (0.0, 0.2)
# Each pause of a handler is up to this long.
PACE_SECONDS = 0.05
# The time for which a client retries one key; a key without a response by then is lost.
GIVE_UP_SECONDS = 60.0
# How long a client waits after `Retry-After`: less than requested, as many clients do.
RETRY_AFTER_FACTOR = 0.1
_IN_DOUBT = 409
# Timeout, so that no client hangs in the accept queue of a dead worker.
ANSWER_SECONDS_MAX = 20.0


@dataclass
class Figures:
    """Counts of one load run."""

    seconds: float = 0.0
    keys: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    replays: int = 0
    requests: int = 0
    cut: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    kills: int = 0
    in_doubt: int = 0
    repeated: int = 0

    def lines(self) -> list[str]:
        """Return the figures as a line for people."""
        keys = ", ".join(f"{count} {path}" for path, count in sorted(self.keys.items()))
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        return [
            f"{self.seconds:.0f} s, {WORKERS} workers, {CLIENTS} clients, {self.kills} kill -9",
            f"keys       {sum(self.keys.values())} ({keys})",
            f"requests   {self.requests}: {statuses}; {self.cut} cut off by a kill",
            f"answered   {self.answers}, of which {self.replays} replayed",
            f"in doubt   {self.in_doubt} keys that may not be repeated, killed in the middle",
            f"ran again  {self.repeated} times, on routes where that is allowed, after a kill",
        ]


class Load:
    """One run. `paths` are the routes that are requested, in turn."""

    def __init__(
        self, fork_server: ForkServer, store: str, folder: Path, paths: Sequence[str], *, seed: int = 0
    ) -> None:
        self.figures = Figures()
        self._fork_server = fork_server
        self._store = store
        self._paths = paths
        self._chance = random.Random(seed)
        self._effects = Effects(folder / "effects")
        self._numbers = itertools.count()
        self._mutex = threading.Lock()
        self._answers: dict[tuple[str, str], list[RawResponse]] = defaultdict(list)
        self._killed: set[int] = set()
        self._over = threading.Event()
        self._broken = threading.Event()

    def run(self, seconds: float, *, kills_max: float = math.inf) -> Figures:
        """Run the load, send each key once more, and check the invariants. Raises `AssertionError` if one is broken.

        The load ends after these seconds, or after this number of kills.
        """
        with ExitStack() as stack:
            workers = [
                stack.enter_context(closing(Worker(self._fork_server, self._store, self._effects, pace=PACE_SECONDS)))
                for _ in range(WORKERS)
            ]
            ports = [worker.port for worker in workers]
            start = time.monotonic()
            with ThreadPoolExecutor(CLIENTS) as threads:
                clients = [threads.submit(self._client, number, ports) for number in range(CLIENTS)]
                for client in clients:
                    client.add_done_callback(self._end_if_broken)
                try:
                    self._kill(workers, start + seconds, kills_max)
                finally:
                    self._over.set()
                for client in clients:
                    client.result()
                self.figures.seconds = time.monotonic() - start
                keys = sorted(self._answers)
                last = dict(
                    zip(keys, threads.map(lambda one: self._send_request(one[0], one[1], ports), keys), strict=True)
                )
        self._check(last)
        return self.figures

    def _end_if_broken(self, client: Future[None]) -> None:
        """Raise the failure of a client at once, and not at the end of the run."""
        if client.exception() is not None:
            self._broken.set()

    def _kill(self, workers: list[Worker], end: float, kills_max: float) -> None:
        while time.monotonic() < end and self.figures.kills < kills_max:
            if self._broken.wait(self._chance.uniform(*ALIVE_SECONDS)):
                return
            worker = self._chance.choice(workers)
            self._killed.add(worker.pid)
            worker.kill()
            self.figures.kills += 1
            self._broken.wait(self._chance.uniform(*GONE_SECONDS))
            worker.restart()

    def _client(self, number: int, ports: list[int]) -> None:
        while not self._over.is_set():
            with self._mutex:
                nth = next(self._numbers) // RIVALS
            path = self._paths[nth % len(self._paths)]
            key = f"{path.strip('/')}-{nth}"
            answer = self._send_request(path, key, ports[number % WORKERS :] + ports[: number % WORKERS])
            with self._mutex:
                self._answers[path, key].append(answer)

    def _send_request(self, path: str, key: str, ports: list[int]) -> RawResponse:
        """Send the request to one worker after the other, with the same key, until the response is final."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        for tries, port in enumerate(itertools.cycle(ports)):
            assert time.monotonic() < deadline, f"{key} was lost: asked {tries} times, and no answer"
            try:
                answer = send_request(port, path, key, wait=2 if tries % 2 else 0, seconds=ANSWER_SECONDS_MAX)
            except OSError:
                self._count(None)
                continue
            self._count(answer)
            if answer.status < 500 and answer.retry_after is None:
                return answer
            if self._broken.wait(RETRY_AFTER_FACTOR * float(answer.retry_after or 1)):
                break
        raise AssertionError(f"{key} has no answer yet, and another client has failed")

    def _count(self, answer: RawResponse | None) -> None:
        with self._mutex:
            figures = self.figures
            figures.requests += 1
            if answer is None:
                figures.cut += 1
                return
            figures.statuses[answer.status] += 1
            figures.answers += answer.status == 201
            figures.replays += answer.replayed

    # The reckoning.

    def _check(self, last: dict[tuple[str, str], RawResponse]) -> None:
        figures = self.figures
        assert set(figures.statuses) <= {201, 409, 503}, figures.statuses
        ran = defaultdict(list)
        for effect in self._effects.all():
            ran[effect.key].append(effect)
        for (path, key), answers in self._answers.items():
            settled = answers
            figures.keys[path] += 1
            runs = ran[key]
            assert len({run.version for run in runs}) == len(runs), f"{key} ran twice under one version"
            figures.repeated += max(0, len(runs) - 1)
            if path in {"/hold", "/hold-stream"}:
                assert len(runs) <= 1, f"{key} may not be repeated and ran {len(runs)} times"
                if last[path, key].status == 409:
                    figures.in_doubt += 1
                    assert {(one.status, one.problem) for one in [last[path, key], *answers]} == {(409, "in-doubt")}, (
                        key
                    )
                    continue
                if all(int(run.token.partition(".")[0]) in self._killed for run in runs):
                    # The killed process had sent its outcome, and the server applied it after another process had found
                    # the holder dead: a late receipt, which ends the doubt.
                    settled = [one for one in answers if one.status != _IN_DOUBT]
            same = {one.same for one in [last[path, key], *settled]}
            assert len(same) == 1, f"{key} has {len(same)} answers: {[(status, body[:100]) for status, body in same]}"
            assert last[path, key].replayed, key
            ((status, body),) = same
            assert status == 201, (key, status, body)
            if path != "/once":
                assert body in {_body(path, run.token) for run in runs}, f"{key} has an answer that no run of it gave"
        if "/once" in self._paths:
            self._check_once(last)

    def _check_once(self, last: dict[tuple[str, str], RawResponse]) -> None:
        """Check that each key has one effect, which its response names."""
        with psycopg.connect(self._store) as connection:
            rows = connection.execute("SELECT key, token FROM sales").fetchall()
        answered = {key: json.loads(answer.body)["token"] for (path, key), answer in last.items() if path == "/once"}
        assert len(rows) == len(answered), f"{len(rows)} effects of {len(answered)} keys"
        assert dict(rows) == answered


def _body(path: str, token: str) -> bytes:
    return whole_body(token) if path.endswith("stream") else f'{{"token":"{token}"}}'.encode()
