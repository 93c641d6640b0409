"""A server in a container: `python -m tests.faults.http.container_server SOCKET STORE FOLDER LEASE_SECONDS`.

Its one handler adds a line to `effects`, and does not answer before the test makes the file `answer`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from onceward.http import IdempotencyMiddleware
from onceward.http.asgi_types import Receive, Send


class Payments:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, scope: Any, _receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        with (self._folder / "effects").open("a") as effects:
            effects.write(f"paid by pid {os.getpid()}\n")
        while not (self._folder / "answer").exists():  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"paid"})


def main(number: str, store: str, folder: str, lease_seconds: str) -> None:
    app = IdempotencyMiddleware(Payments(Path(folder)), store, lease_seconds=float(lease_seconds), metrics=False)
    config = uvicorn.Config(app, log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(number))])


if __name__ == "__main__":
    main(*sys.argv[1:])
