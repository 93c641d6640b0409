"""Server process of the bare routes: FastAPI on the hub's uvicorn settings, with nothing behind them.

    python -m bench.hub.bare

It prints its port in one JSON line, and exits when its standard input is closed.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Attachment(BaseModel):
    """The fields of a topic attachment, as the hub's model has them."""

    kind: str
    key: str | None = None
    value_json: dict[str, Any]
    dedupe_key: str | None = None
    source_message_id: str | None = None


@app.post("/attachments", status_code=201)
async def attach(sent: Attachment) -> dict[str, object]:
    return {"id": sent.dedupe_key, "kind": sent.kind}


@app.get("/healthz")
async def healthz() -> dict[str, object]:
    return {"status": "ok"}


def main() -> None:
    # asyncio sets TCP_NODELAY only on sockets whose protocol is IPPROTO_TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    # The event loop is uvicorn's default, as in the hub: uvloop if it is installed.
    config = uvicorn.Config(
        app, http="httptools", ws="none", access_log=False, log_level="error", proxy_headers=False, server_header=False
    )
    server = uvicorn.Server(config)

    def end_with_input() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_input, daemon=True).start()
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
