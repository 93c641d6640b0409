"""Parsers of keys from other sources than the key headers, of webhooks, of the console's forms, and of reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.types import Message
from tests.fuzz.engine import ClassifiedResult, Target
from tests.fuzz.http_targets import JSON_SEEDS, latin

from onceward.errors import InvalidInput, InvalidKey, UnexpectedAnswer
from onceward.http.client.profile import code_in, shows_processed
from onceward.http.keyed.key_limit import counted_as
from onceward.http.keyed.principal import ANONYMOUS
from onceward.http.request.json_digest import json_digest
from onceward.http.request.key_source import KeySource, RequestHead, first_of, header, json_field, query
from onceward.http.webhooks import cloudevents, shopify, slack, standard, stripe
from onceward.hub.audit.filter import audit_filter
from onceward.hub.client.storage import parse_line
from onceward.hub.console.forms import read_form
from onceward.hub.console.pages.bulk import _unpacked


def json_compared(data: bytes) -> object:
    """Two bodies with the same digest have the same value, whatever it is."""
    found = json_digest(data)
    if found is None:
        return None
    assert found == json_digest(b" " + data + b"\n")
    return ClassifiedResult("value")


def head_and_body(data: bytes) -> tuple[RequestHead, bytes]:
    """Take the first line as the value of every header and as the query, and the rest as the body."""
    line, _, body = data.partition(b"\n")
    return RequestHead("POST", "/", latin(line), lambda _name: [latin(line)] if line else []), body


SOURCES: tuple[KeySource, ...] = (
    header("Webhook-Id"),
    query("delivery"),
    json_field("event.id"),
    first_of(header("a"), json_field("id")),
    *(rule().key for rule in (cloudevents, shopify, slack, standard, stripe)),
)


def sources(data: bytes) -> object:
    head, body = head_and_body(data)
    kinds = []
    for source in SOURCES:
        try:
            found = source.find(head, body)
        except InvalidKey:
            kinds.append("refused")
        else:
            assert found is None or found.isascii()
            kinds.append("none" if found is None else "key")
    return ClassifiedResult(" ".join(kinds))


def client_bodies(data: bytes) -> object:
    return ClassifiedResult(f"{bool(code_in(data))} {shows_processed('/checkouts/1/complete', 200, data)}")


def counted(data: bytes) -> object:
    assert counted_as(ANONYMOUS, latin(data), by_address=True).startswith("address:")
    return ClassifiedResult("address")


def audit_times(data: bytes) -> object:
    since, _, until = data.decode("utf-8", "replace").partition("\n")
    return ClassifiedResult(str(bool(audit_filter(since=since, until=until).since)))


def console_form(data: bytes) -> object:
    async def receive() -> Message:
        return {"type": "http.request", "body": data, "more_body": False}

    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    form: Callable[[Request], Awaitable[object]] = read_form
    asyncio.run(_awaited(form(Request({"type": "http", "method": "POST", "headers": headers}, receive))))
    return ClassifiedResult("form")


async def _awaited(found: Awaitable[object]) -> object:
    return await found


TARGETS = (
    Target("json-digest", ("http.request.json_digest",), json_compared, JSON_SEEDS),
    Target(
        "key-sources",
        ("http.request.key_source", "http.webhooks"),
        sources,
        (
            b"delivery=1&delivery=2\n{}",
            b"msg_1\n" + json.dumps({"id": "evt_1", "event_id": "Ev1", "event": {"id": "e"}, "type": "x"}).encode(),
            b'a%20b\n{"source":"/s","id":"1","type":"event_callback"}',
            b'\n{"id":1,"id":2}',
        ),
    ),
    Target(
        "client-profile",
        ("http.client.profile",),
        client_bodies,
        (
            b'{"code":"idempotency_conflict"}',
            b'{"error":{"type":"idempotency_error"}}',
            b'{"status":"completed"}',
            b'{"status":[1]}',
        ),
    ),
    Target(
        "address",
        ("http.keyed.key_limit",),
        counted,
        (b"192.0.2.1", b"2001:db8::1%eth0", b"::ffff:192.0.2.1", b"unix:", b""),
    ),
    Target(
        "audit-times",
        ("hub.audit.filter",),
        audit_times,
        (b"2026-11-18\n2026-11-19T00:00:00Z", b"\n9999-12-31", b"0001-01-01T00:00:00+23:59\n"),
        (InvalidInput,),
    ),
    Target(
        "console-form",
        ("hub.console.forms",),
        console_form,
        (b"csrf=a&item=%5B%22s%22%2C%22k%22%2C1%5D&item=b", b"a=%C3%A9&b"),
        (InvalidInput,),
    ),
    Target(
        "console-item",
        ("hub.console.pages.bulk",),
        lambda data: ClassifiedResult(type(_unpacked(data.decode("utf-8", "replace"))).__name__),
        (b'["scope","key",1]', b"5", b'{"a":1,"b":2,"c":3}'),
        (InvalidInput,),
    ),
    Target(
        "progress-line",
        ("hub.client.storage",),
        lambda data: ClassifiedResult(str(parse_line(data.decode("utf-8", "replace"))[1] is None)),
        (b'{"progress":{"done":1,"total":2}}', b'{"result":{}}', b"[]"),
        (UnexpectedAnswer,),
    ),
)
