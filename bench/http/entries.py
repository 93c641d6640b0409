"""Entries of Onceward: the bare route, the route with the middleware, and both without a framework.

Each function imports only what its server needs, so that no server pays for the imports of another.
"""

from __future__ import annotations

from hashlib import sha256

from bench.http.plain import App, Message, Receive, Runs, Scope, Send, plain_app, read_body


def bare(_url: str, runs: Runs) -> App:
    from bench.http.app import add_payments, fastapi_app  # noqa: PLC0415

    return add_payments(fastapi_app(runs), runs)


def ours(url: str, runs: Runs) -> App:
    from bench.http.app import add_payments, fastapi_app  # noqa: PLC0415
    from onceward import IdempotencyMiddleware  # noqa: PLC0415

    app = add_payments(fastapi_app(runs), runs)
    app.add_middleware(IdempotencyMiddleware, store=url)
    return app


def plain_bare(_url: str, runs: Runs) -> App:
    return plain_app(runs)


def plain_ours(url: str, runs: Runs) -> App:
    from onceward import IdempotencyMiddleware  # noqa: PLC0415

    return IdempotencyMiddleware(plain_app(runs), store=url)


def plain_dict(_url: str, runs: Runs) -> App:
    """Replay from a fingerprint and a dict, without store, scope or states: the minimal cost of a replay."""
    inner = plain_app(runs)
    stored: dict[bytes, tuple[bytes, list[Message]]] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        key = next((value for name, value in scope.get("headers", ()) if name == b"idempotency-key"), None)
        if key is None:
            await inner(scope, receive, send)
            return
        body = await read_body(receive)
        fingerprint = sha256(scope["method"].encode() + scope["raw_path"] + scope["query_string"] + body).digest()
        if key in stored and stored[key][0] == fingerprint:
            for message in stored[key][1]:
                await send(message)
            return
        sent: list[Message] = []

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def record(message: Message) -> None:
            sent.append(message)
            await send(message)

        await inner(scope, again, record)
        replayed = {**sent[0], "headers": [*sent[0]["headers"], (b"idempotent-replayed", b"true")]}
        stored[key] = (fingerprint, [replayed, *sent[1:]])

    return app
