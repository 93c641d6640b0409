"""Run the demo: `python -m examples.demo starlette`, or fastapi, litestar, quart, django.

curl -X POST http://127.0.0.1:8787/api/dwellers/1/act -H 'Authorization: Bearer ada-token' \\
     -H 'Idempotency-Key: 1' -H 'Content-Type: application/json' -d '{"action": "dig"}'
"""

import argparse
import importlib
from pathlib import Path

import uvicorn
from examples.demo.world import World

MAKERS = {
    "starlette": ("starlette_app", "make_app"),
    "fastapi": ("fastapi_app", "make_app"),
    "litestar": ("litestar_app", "make_app"),
    "quart": ("quart_app", "make_app"),
    "django": ("django_app", "make_asgi_app"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=MAKERS)
    parser.add_argument("--port", type=int, default=8787, help="the port on 127.0.0.1 (default 8787)")
    parser.add_argument("--data-dir", type=Path, default=Path("onceward-data"), help="the data folder")
    parser.add_argument("--store", help="the URL of the store for keys (default: a SQLite file in the data folder)")
    asked = parser.parse_args()
    asked.data_dir.mkdir(parents=True, exist_ok=True)

    module, name = MAKERS[asked.framework]
    make_app = getattr(importlib.import_module(f"examples.demo.{module}"), name)
    store = asked.store or f"sqlite:///{asked.data_dir / 'keys.db'}"
    uvicorn.run(make_app(World(asked.data_dir / "world.db"), store), host="127.0.0.1", port=asked.port)


if __name__ == "__main__":
    main()
