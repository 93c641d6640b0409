"""Server process of one contestant: uvicorn with one worker. It also runs in the environment of the peers.

python -m bench.http.serve bench.http.entries:ours fastapi sqlite:///x.db

It prints its port in one JSON line, and exits when its standard input is closed.
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

# These must have the same versions for all contestants: the contest compares libraries, not servers.
SERVER_PACKAGES = ("fastapi", "starlette", "uvicorn", "httptools", "pydantic")


def main() -> None:
    # Redirect stdout to stderr, so that output of a library does not mix with the JSON lines.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    package, url = sys.argv[2:]
    try:
        app = getattr(importlib.import_module(module), name)(url, Runs())
    except Exception as error:  # noqa: BLE001  # the parent process handles it
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        print(json.dumps({"error": text}), file=output, flush=True)
        return
    # asyncio sets TCP_NODELAY only on sockets whose protocol is IPPROTO_TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    server = uvicorn.Server(
        uvicorn.Config(app, loop="asyncio", http="httptools", ws="none", access_log=False, log_level="error")
    )
    threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
    started = {
        "port": listener.getsockname()[1],
        "version": importlib.metadata.version(package),
        "server": {known: importlib.metadata.version(known) for known in SERVER_PACKAGES},
    }
    print(json.dumps(started), file=output, flush=True)
    server.run(sockets=[listener])


def _end_with_input(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True


if __name__ == "__main__":
    main()
