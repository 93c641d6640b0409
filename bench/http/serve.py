"""One contestant's server: uvicorn with one worker, in a process of its own. Runs in the peers' environment too.

python -m bench.http.serve bench.http.entries:ours sqlite:///x.db

It says where it listens in one JSON line, and ends when its input does.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import socket
import sys
import threading

import uvicorn

from bench.http.plain import Runs

# What must be the same for all, or the contest would be one of servers.
SERVER_PACKAGES = ("fastapi", "starlette", "uvicorn", "httptools", "pydantic")


def main() -> None:
    # Whatever a library prints must not end up between our lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    package, url = sys.argv[2:]
    try:
        app = getattr(importlib.import_module(module), name)(url, Runs())
    except Exception as error:  # noqa: BLE001  # the one who asks decides what it means
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        print(json.dumps({"error": text}), file=answers, flush=True)
        return
    # asyncio sends without delay only on sockets that say they are TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    server = uvicorn.Server(
        uvicorn.Config(app, loop="asyncio", http="httptools", ws="none", access_log=False, log_level="error")
    )
    threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
    said = {
        "port": listener.getsockname()[1],
        "version": importlib.metadata.version(package),
        "server": {known: importlib.metadata.version(known) for known in SERVER_PACKAGES},
    }
    print(json.dumps(said), file=answers, flush=True)
    server.run(sockets=[listener])


def _end_with_input(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True


if __name__ == "__main__":
    main()
