"""The demo application, safe to retry: `make serve`, then

    curl http://127.0.0.1:8787/api/stories -H 'Authorization: Bearer ada-token' -H 'Idempotency-Key: my-first-story' \\
        -H 'Content-Type: application/json' -d '{"title": "A story", "text": "It was told once."}'

as often as you like, at once or in turn: there is one story, and everyone gets the same answer. `GET /api/stories`
shows it, `/docs` all routes.
"""

import argparse
import contextlib
from pathlib import Path

import uvicorn
from examples.demo.fastapi_app import make_app
from examples.demo.world import World

from onceward.http.openapi import document_idempotency

# Long enough for an example's handlers: a racing duplicate gets the answer instead of 409.
WAIT_SECONDS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8787, help="the port on 127.0.0.1 (default 8787)")
    parser.add_argument("--data-dir", type=Path, default=Path("onceward-data"), help="default ./onceward-data")
    options = parser.parse_args()
    options.data_dir.mkdir(parents=True, exist_ok=True)

    store = f"sqlite:///{options.data_dir / 'ledger.db'}"
    app = make_app(World(options.data_dir / "world.db"), store, wait_seconds=WAIT_SECONDS, paths=["/api/"])
    document_idempotency(app, paths=["/api/"])
    print(f"onceward: serving the demo on http://127.0.0.1:{options.port} (data in {options.data_dir})", flush=True)
    print(f"onceward: tokens ada-token and bob-token; routes on http://127.0.0.1:{options.port}/docs", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="info")


if __name__ == "__main__":
    main()
