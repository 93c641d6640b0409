"""A client process of its own, to be raced and killed: `python -m tests.http.client.intents_process FILE [URL]`.

It says "ready" and waits for a line. Then it asks for the key of one intent, sends a request with it if it has a URL, and
says which key it had.
"""

from __future__ import annotations

import sys

import httpx

from onceward.http.client import Intents, RetryTransport

INTENT = "charge order 42"


def main(file: str, url: str = "") -> None:
    print("ready", flush=True)  # noqa: T201  # that is how it reports
    sys.stdin.readline()
    intents = Intents(file)
    if not url:
        print(intents.key_for(INTENT), flush=True)  # noqa: T201
        return
    with httpx.Client(transport=RetryTransport(), timeout=60) as client, intents.until_done(INTENT) as key:
        client.post(url, json={"order": 42}, headers={"Idempotency-Key": key}).raise_for_status()
        print(key, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
