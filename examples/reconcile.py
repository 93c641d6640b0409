"""Submit and poll: the provider takes a batch, but its response is lost. `http_get` asks before anything is repeated."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from onceward import errors, open_ledger
from onceward.reconcile import http_get

batches: dict[str, str] = {}  # the provider's records: the state of each batch, by the reference of its customer


class Provider(BaseHTTPRequestHandler):
    """Takes a batch and closes the connection without a response. `GET` returns the state of a batch."""

    def do_POST(self) -> None:
        batches[self.path.removeprefix("/batches/")] = "running"

    def do_GET(self) -> None:
        state = batches.get(self.path.removeprefix("/batches/"))
        self.send_response(404 if state is None else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"state": state}).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def main(url: str) -> None:
    ledger = open_ledger("memory:", wait_seconds=0)

    def submit() -> str:
        return httpx.post(f"{url}/batches/may-2026").text

    # A batch that exists has happened once it is done. A batch that is missing an hour after the claim was never
    # submitted, if `submit` gives up within that hour.
    reconcile = http_get(
        f"{url}/batches/{{key}}",
        found=lambda batch: batch["state"] == "done",
        final_after_seconds=3600,
    )

    def call() -> object:
        try:
            return ledger.blocking.run("may-2026", submit, effect="irreversible", reconcile=reconcile)
        except (errors.InDoubt, httpx.HTTPError) as error:
            return type(error).__name__

    print("first:", call())
    print("still running:", call())
    batches["may-2026"] = "done"
    print("done:", call())
    print("batches:", len(batches))
    ledger.close()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    main(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
