"""Parsers of HTTP: heads, headers, forms, JSON bodies, events, and stored responses."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import re
from typing import Any, cast

import uvicorn
from tests.fuzz.engine import ClassifiedResult, Target
from uvicorn.server import ServerState

from onceward.core.entry import Entry, Status
from onceward.core.outcome import Outcome
from onceward.errors import InvalidInput, InvalidKey, OutcomeNotKept, TooLarge
from onceward.http.client.policy import read_whole, retry_after_seconds
from onceward.http.keyed.principal import of_request
from onceward.http.request.buffered_body import promised_digest
from onceward.http.request.form_digest import parts_digest
from onceward.http.request.headers import fields_of, key_of, length_of, media_type_of, wait_seconds_of
from onceward.http.response.sse import EventSplitter, has_id, place_of, with_id
from onceward.http.stored.codec import ResponseCodec
from onceward.http.stored.encryption import Encryption
from onceward.hub.chat.stream import position_of
from onceward.hub.server.connection_limits import ConnectionLimits
from onceward.hub.server.http_protocol import HttpProtocol
from onceward.hub.server.websocket_protocol import FramesProtocol
from onceward.hub.web.download import BytePart, disposition, is_unchanged, wanted_part
from onceward.hub.web.json_body import NESTING_MAX, parse
from onceward.hub.web.request_log import request_id_of, shown_path
from onceward.hub.web.upload import Upload, _Reader

NOW = datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC)
JSON_SEEDS = (
    b'{"title":"A task","n":-1.5e3,"list":[1,true,null,"x\\u00e9\\ud83d\\ude00"],"deep":{"a":{"b":[[]]}}}',
    b"[]", b'"text"', b'{"a":1,"a":2}', b'{"n":1e400}', b"\xef\xbb\xbf{}", b'{"big":12345678901234567890}',
)  # fmt: skip


def latin(data: bytes) -> str:
    """Decode header lines as servers do."""
    return data.decode("latin-1")


# Bytes of connections.


class RecordingTransport(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 5), "sockname": ("127.0.0.1", 8787)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body, or accept a WebSocket and send back what arrives."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": "x"})
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.request":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


LOOP_STEPS = 6
_config: Any = None


def connection(data: bytes) -> ClassifiedResult:
    """Send bytes to a connection in two pieces, let the application run, and close."""
    global _config  # noqa: PLW0603  # one configuration for all inputs
    if _config is None:
        _config = uvicorn.Config(
            echo, ws=cast("Any", FramesProtocol), lifespan="off", log_config=None, access_log=False
        )
        _config.load()

    async def exchange() -> bytes:
        failures: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: failures.append(context))
        transport = RecordingTransport()
        protocol: Any = HttpProtocol(_config, ServerState(), {}, loop, limits=ConnectionLimits())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        half = len(data) // 2
        for piece in (data[:half], data[half:]):
            if piece and not transport.is_closing():
                cast("Any", transport.protocol).data_received(piece)
            for _ in range(LOOP_STEPS):
                await asyncio.sleep(0)
        cast("Any", transport.protocol).connection_lost(None)
        for _ in range(LOOP_STEPS):
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not failures, failures
        return bytes(transport.written)

    written = asyncio.run(exchange())
    assert not written or written.startswith(b"HTTP/1.1 "), written[:80]
    assert not written.startswith(b"HTTP/1.1 5"), written[:80]
    return ClassifiedResult(re.sub(rb"[^A-Za-z0-9 /.]", b"", written[:60]).decode())


def upload(data: bytes) -> object:
    boundary, _, body = data.partition(b"\n")
    reader = _Reader(boundary, Upload(cast("Any", None)), 4096)
    reader.feed(body[: len(body) // 2])
    reader.feed(body[len(body) // 2 :])
    reader.finish()
    return reader.upload.fields


def form(data: bytes) -> bytes | None:
    content_type, _, body = data.partition(b"\n")
    whole, pieces = parts_digest(latin(content_type)), parts_digest(latin(content_type))
    if whole is None or pieces is None:
        return None
    whole.feed(body)
    for start in range(0, len(body), 7):
        pieces.feed(body[start : start + 7])
    digest = whole.finish()
    assert pieces.finish() == digest, "the digest depends on the pieces in which the body arrives"
    return digest


# Bodies.


def json_body(data: bytes) -> object:
    value = parse(data)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    assert "\x00" not in text.encode().decode()
    assert text.count("[") + text.count("{") <= len(data)
    assert _depth(value) <= NESTING_MAX
    return value


def _depth(value: object) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        found, level = waiting.pop()
        if isinstance(found, dict | list):
            deepest = max(deepest, level)
            waiting += [(one, level + 1) for one in (found.values() if isinstance(found, dict) else found)]
    return deepest


# Headers.


def key(data: bytes) -> str:
    first, _, second = latin(data).partition("\n")
    found = key_of([first], [second] if second else [])
    assert 1 <= len(found) <= 255
    assert found.isascii()
    return found


def small_headers(data: bytes) -> object:
    text = latin(data)
    seconds, length = wait_seconds_of([text]), length_of(text)
    assert seconds is None or 0 <= seconds <= 60
    assert length is None or length >= 0
    identity = request_id_of([(b"x-request-id", data)])
    assert identity.isascii()
    assert identity.isprintable()
    assert shown_path({"raw_path": data, "path": "/"}).isprintable()
    disposition("attachment", data.decode("utf-8", "replace")).encode("latin-1")
    return seconds, length, media_type_of(text), read_whole(text, text)


def range_(data: bytes) -> object:
    header, _, tags = latin(data).partition("\n")
    for size in (0, 1, 1000):
        part = wanted_part(header, None, '"e"', size)
        if isinstance(part, BytePart):
            assert 0 <= part.start < part.end <= size
    return part, is_unchanged(tags, '"e"')


def digest(data: bytes) -> bytes | None:
    first, _, second = latin(data).partition("\n")
    found = promised_digest(first, second)
    assert found is None or len(found) == 32
    return found


def credentials(data: bytes) -> object:
    names = ("authorization", "cookie", "cookie", "x-api-key", "proxy-authorization")
    lines = list(zip(names, data.split(b"\n"), strict=False))
    found = of_request(lines, {b"sid"})
    assert found == of_request(lines, {b"sid"})
    assert found.scope.isprintable()
    return found.scope[:12]


def retry_after(data: bytes) -> float | None:
    value, _, date = latin(data).partition("\n")
    seconds = retry_after_seconds(value, date or None, NOW)
    assert seconds is None or seconds >= 0
    return seconds


def events(data: bytes) -> int:
    splitter, blocks = EventSplitter(), []
    for start in range(0, len(data), 11):
        blocks += splitter.feed(data[start : start + 11])
    rest = splitter.finish()
    assert b"".join(blocks) + rest == data
    for block in blocks:
        with_id(block, 1, 0, 64 * 1024)
        has_id(block, b"1.1")
    return len(blocks)


def event_id(data: bytes) -> object:
    text = latin(data)
    found = place_of(text)
    assert found is None or min(found) >= 0
    return found, position_of(text)


# Stored responses.

KEY = bytes(range(32))
CODEC = ResponseCodec(frozenset(), Encryption([KEY]))
PLAIN = ResponseCodec(frozenset())


def entry(outcome: Outcome, recovery: str | None = None) -> Entry:
    return Entry("s", "k", "f", Status.COMPLETED, 1, 1, "w", "h", True, 0, None, 0, outcome=outcome, recovery=recovery)


def stored(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    status, headers = PLAIN.decode_settled(entry(Outcome(200, text, None)))
    assert all(isinstance(part, bytes) for line in headers for part in line)
    repr(entry(Outcome(200, None, None), text).recovery_point)
    return status, PLAIN.decode_head(entry(Outcome(200, None, None)), data)


def encrypted(data: bytes) -> object:
    """Every changed byte must be noticed, so nothing but the seed can be decrypted."""
    body, _, text = data.partition(b"\n")
    found = entry(Outcome(200, latin(text), body))
    if base64.b64encode(body) != SEED_BODY:
        refused = False
        try:
            CODEC.decode_body(found, body)
        except OutcomeNotKept:
            refused = True
        assert refused, "changed bytes were decrypted"
    CODEC.decode_settled(found)
    return CODEC.decode_recovery(entry(Outcome(200, None, None), latin(text)))


_STORED = CODEC.encode_body(entry(Outcome(200, None, None)), b"stored body").replace(b"\n", b"")
SEED_BODY = base64.b64encode(_STORED)
_SEED_TEXT = CODEC.encode_headers(entry(Outcome(200, None, None)), 200, [(b"a", b"b")]).encode()
_FORM = (
    b'multipart/form-data; boundary="b1"\n--b1\r\nContent-Disposition: form-data; name="content"; filename="a.txt"\r\n'
    b"Content-Type: text/plain\r\n\r\nbytes\r\n--b1\r\nContent-Disposition: form-data; name=kind\r\n\r\nspec\r\n--b1--\r\n"
)

TARGETS = (
    Target(
        "http",
        ("hub.server.http_protocol", "hub.server.websocket_protocol"),
        connection,
        (
            b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nT: r\r\n\r\n",
            (b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x81\x85\x01\x02\x03\x04ig`ec\x89\x80\x00\x00\x00\x00"),
        ),
        words=(b"Expect: 100-continue\r\n", b"Content-Length: 5\r\n", b"Upgrade: h2c\r\n", b"HTTP/1.0", b"\x88\x82"),
    ),
    Target("key", ("http.request.headers",), key, (b"abc", b'"a\\"b"', b"a\na", b'"a"\n"b"'), (InvalidKey,)),
    Target(
        "small-headers",
        ("http.request.headers", "hub.web.request_log", "hub.web.download", "http.client.policy"),
        small_headers,
        (b"respond-async, wait=10", b'wait="5"; x', b"17", b"text/plain; charset=utf-8", b"application/problem+json"),
    ),
    Target("range", ("hub.web.download",), range_, (b'bytes=0-9\n"e", W/"f"', b"bytes=-5\n*", b"bytes=5-", b"x=1-2")),
    Target(
        "digest",
        ("http.request.buffered_body",),
        digest,
        (b"sha-256=:" + base64.b64encode(bytes(32)) + b":, md5=:aa==:\nsha-256=:AA==:",),
    ),
    Target("form", ("http.request.form_digest",), form, (_FORM, b"multipart/form-data; boundary=b\n--b--")),
    Target(
        "upload",
        ("hub.web.upload",),
        upload,
        (
            b"b1" + _FORM[_FORM.index(b"\n") :],
            b"b\n--b\r\nContent-Disposition: form-data; name=content; filename*=UTF-8''%e2%82%ac\r\n\r\nx\r\n--b--\r\n",
        ),
        (InvalidInput, TooLarge),
    ),
    Target("json-body", ("hub.web.json_body",), json_body, JSON_SEEDS, (InvalidInput,)),
    Target("json-fields", ("http.request.headers",), lambda data: fields_of(data, ("title", "deep.a.b")), JSON_SEEDS),
    Target(
        "credentials",
        ("http.keyed.principal",),
        credentials,
        (b"Bearer abc\na=b; sid=1", b"Basic eDp5\nsid=2; c\nd=e\nkey", b"\n\n"),
    ),
    Target(
        "retry-after",
        ("http.client.policy",),
        retry_after,
        (b"7", b"Wed, 18 Nov 2026 07:28:00 GMT\nWed, 18 Nov 2026 07:27:00 GMT", b"Wed Nov 18 07:28:00 2026"),
    ),
    Target(
        "events",
        ("http.response.sse",),
        events,
        (b"\xef\xbb\xbfid: 1\r\ndata: x\r\n\r\n: c\n\nevent: e\rdata: y\r\r", b"data: a\n\n\n\ndata: b"),
    ),
    Target("event-id", ("http.response.sse", "hub.chat.stream"), event_id, (b"3.17", b" 1.1 ", b""), (InvalidInput,)),
    Target(
        "stored-response",
        ("http.stored.codec", "http.stored.policy", "core.entry"),
        stored,
        (b'200 [["content-type","text/plain"]]', b'[["a","b"]]', b'200 [["a"]]', b"[[1,2]]"),
        (OutcomeNotKept,),
    ),
    Target(
        "encrypted-response",
        ("http.stored.codec", "http.stored.encryption"),
        encrypted,
        (_STORED + b"\n" + _SEED_TEXT, b"\x02" * 64 + b"\nsealed:AAAA", b"\x01" * 64 + b"\nplain"),
        (OutcomeNotKept,),
    ),
)  # fmt: skip
