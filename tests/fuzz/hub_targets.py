"""Parsers of the hub, its client, its settings and the stores: everything outside of HTTP and ingest."""

from __future__ import annotations

import datetime
import json
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

import click
import httpx
from tests.fuzz.engine import Target
from tests.fuzz.http_targets import JSON_SEEDS, latin

from onceward.cli.argument import json_argument
from onceward.cli.root_command import onceward
from onceward.cli.token_file import token_in
from onceward.core import value
from onceward.core.fingerprint import fingerprint
from onceward.core.json_text import depth, has_nul
from onceward.errors import InvalidConfig, InvalidInput, InvalidOption, InvalidStoreUrl, OncewardError, OutcomeNotKept
from onceward.http.stored.codec import ResponseCodec
from onceward.hub.backup.manifest import MANIFEST, read_manifest
from onceward.hub.blobs.open import open_blobs
from onceward.hub.claims.claims import from_cursor
from onceward.hub.claims.given_response import GivenResponse, checked_response
from onceward.hub.client import chat, follow, responses
from onceward.hub.config.config import load
from onceward.hub.config.setting import CipherKeys, Duration, Text, TextList, WebhookSecret, WholeNumber
from onceward.hub.db.page import parse_cursor
from onceward.hub.events.framing import frame, texts
from onceward.hub.events.handshake import CloseReason, read_client_message, read_handshake
from onceward.hub.security.auth import sent_token
from onceward.hub.security.client_address import TrustedProxies
from onceward.hub.security.hosts import address_of, host_port_of, origin_of, rules_of
from onceward.hub.security.tokens import _id_in, check_name
from onceward.hub.tasks import validation
from onceward.hub.tasks.task import _PLACE
from onceward.hub.web.json_body import parse
from onceward.integrations.langchain import _readable
from onceward.integrations.mcp_identity import extract_key
from onceward.integrations.mcp_wrap import message as mcp_message
from onceward.integrations.mcp_wrap.config import load_config
from onceward.ledger.recovery import encode_recovery
from onceward.reconcile.evidence import NoEvidence
from onceward.reconcile.json_request import json_in
from onceward.store.open import open_store
from onceward.store.redis.replies import split, to_entry
from onceward.store.redis.resp import RedisPipeline
from onceward.store.redis.store import _from_cursor as redis_cursor
from onceward.tools.fingerprint import call_fp, meaningful

FOLDER = Path(tempfile.mkdtemp(prefix="onceward-fuzz-"))
NOW = datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC)


def as_file(name: str, data: bytes) -> Path:
    """Write the input to the one file of a target."""
    file = FOLDER / name
    file.write_bytes(data)
    file.chmod(0o600)
    return file


# Requests.


def client_address(data: bytes) -> str:
    proxies = TrustedProxies(["127.0.0.1", "10.0.0.0/8", "::1"])
    found = proxies.client_of("127.0.0.1", latin(data).split("\n"))
    assert address_of(found) is not None
    return found


def host(data: bytes) -> object:
    text = latin(data)
    rules = rules_of(["*.example.com", "hub:80"], ["https://app.example.com"], "127.0.0.1")
    found = host_port_of(text)
    if found is not None:
        assert found.name
        assert found.port >= 0
        rules.allows_host(found, "https")
        rules.allows_origin(text, "", found, "https")
    return found, origin_of(text)


def token(data: bytes) -> object:
    lines = [(b"authorization", line) for line in data.split(b"\n")]
    sent = sent_token({"headers": lines, "subprotocols": [latin(data)]})
    return None if sent is None else _id_in(sent), check_name(data.decode("utf-8", "surrogateescape"))


def socket_message(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    found = read_handshake(text)
    later = read_client_message(text)
    for one in (found, later):
        if isinstance(one, CloseReason):
            assert 4400 <= one.number < 4500
            one.detail.encode()
    return found, later


def framing(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    assert list(texts(frame(text.encode()) * 2)) == [text, text]
    return len(text)


def cursor(data: bytes) -> object:
    text = latin(data)
    try:
        return parse_cursor(text, _PLACE)[0]
    except InvalidInput:
        inner = from_cursor(text)
    return redis_cursor(inner)


def task_fields(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    found: list[object] = []
    for ask in (
        lambda: validation.normal_labels(text.split(",")),
        lambda: validation.normal_filename(text),
        lambda: validation.normal_title(text),
        lambda: validation.expiry(text, NOW),
        lambda: validation.web_url(text),
        lambda: validation.repo_path(text),
        lambda: validation.meta_text({"a": parse(data)}),
    ):
        try:
            found.append(ask())
        except OncewardError as error:
            found.append(type(error))
    return found


def given_response(data: bytes) -> object:
    status, _, rest = latin(data).partition("\n")
    name, _, body = rest.partition("\n")
    number = int(status) if status.isascii() and status.isdigit() and len(status) < 5 else 200
    header = dict([name.split(": ", 1)]) if ": " in name else {}
    return checked_response(GivenResponse(number, header, None, body), ResponseCodec(frozenset()))


# Files and settings.


def settings(data: bytes) -> object:
    return load(as_file("onceward.toml", data), {}, {}).hub


def setting_values(data: bytes) -> list[object]:
    text = data.decode("utf-8", "replace")
    kinds = (Duration(0, 1e9), WholeNumber(0, 10), CipherKeys((16, 32)), WebhookSecret(), TextList(Text("x")))
    found: list[object] = []
    for kind in kinds:
        try:
            read = kind.read(text, as_text=True)
        except ValueError:
            continue
        kind.write(read)
        found.append(read)
    return found


def store_url(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    found: list[object] = []
    for opened in (open_store, open_blobs):
        if text.lower().startswith("file:"):
            text = text.replace("/", f"/{FOLDER}/blobs/", 1) if opened is open_blobs else text
        try:
            store: Any = opened(text)
        except InvalidStoreUrl as error:
            has_password = re.match(r"(?:redis|postgresql)\S*://\w*:secret@", text) and text.count("secret") == 1
            assert not has_password or "secret" not in str(error), "the message shows the password"  # noqa: PT017
            found.append("refused")
            continue
        found.append(type(store).__name__)
        if hasattr(store, "close"):
            store.close()
    return found


def wrap_config(data: bytes) -> object:
    return load_config(as_file("mcp.toml", data))


def manifest(data: bytes) -> object:
    as_file(MANIFEST, data)
    found = read_manifest(FOLDER)
    assert isinstance(found.format, int)
    assert isinstance(found.database.size_bytes, int)
    assert (found.database.name, found.ledger.name) == ("hub.db", "ledger.db"), "a name becomes a path"
    assert isinstance(found.blobs.count, int)
    assert all(isinstance(one, str) for one in found.damaged)
    json.dumps(found.json())
    return found.format


def token_file(data: bytes) -> str:
    with click.Context(onceward):
        found = token_in(as_file("token", data))
    assert found.split() == [found]
    return found


# Stores.


def stored_value(data: bytes) -> object:
    found = value.decode(data)
    repr(found)
    return found


def recovery_point(data: bytes) -> object:
    try:
        point = json.loads(data)
    except (ValueError, RecursionError):
        return None
    text = encode_recovery(point)
    assert json.loads(text) == point
    return len(text)


def redis_replies(data: bytes) -> object:
    """Let a server send these bytes as the reply to two commands."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.0)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        pipeline = RedisPipeline(ours, (b"a", b"b"), 1.0)
        replies = pipeline.replies()
    assert len(replies) == 2
    return [len(one) for one in replies]


def redis_entry(data: bytes) -> object:
    head, body = split(data)
    return to_entry("s", "k", head, body)


# Responses to the client.


def client_response(data: bytes) -> object:
    head, _, body = data.partition(b"\n")
    status = int(head[:3]) if head[:3].isdigit() else 200
    headers = [(b"Content-Type", head[3:].strip()), (b"Retry-After", b"x")]
    response = httpx.Response(
        max(100, status), headers=headers, content=body, request=httpx.Request("GET", "http://hub/x")
    )
    decoders = (responses.event_page, responses.task_attachment, responses.damage_list, responses.readiness)
    found: list[object] = []
    for decode in decoders:
        try:
            found.append(type(responses.read(response, decode)))
        except OncewardError as error:
            found.append(type(error))
    return found


def client_chat_event(data: bytes) -> object:
    return chat._event(data)


def provider_response(data: bytes) -> object:
    return json_in(data)


def client_event(data: bytes) -> object:
    async def connect(_after: int | None) -> httpx.Response:
        raise AssertionError("not called")

    following = follow.Following(connect, after=5)
    return following._handle_block(data)


# Agents.


def mcp_line(data: bytes) -> object:
    found = mcp_message.decode(data)
    line = mcp_message.encode(found)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    if isinstance(found, dict):
        mcp_message.id_of(found)
    return mcp_message.is_response(found)


def mcp_key(data: bytes) -> object:
    try:
        call = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict):
        return None
    arguments, meta = call.get("arguments"), call.get("_meta")
    return extract_key(
        {"meta"} if "declared" in call else set(),
        arguments if isinstance(arguments, dict) else {},
        meta if isinstance(meta, dict) else {},
    )


def tool_output(data: bytes) -> object:
    return _readable(data.decode("utf-8", "replace"))


def tool_arguments(data: bytes) -> object:
    """The arguments and the metadata of a call, after the hub or a framework has parsed them."""
    try:
        found = parse(data)
    except InvalidInput:
        return None
    arguments = found if isinstance(found, dict) else {"x": found}
    meaningful(arguments)
    return len(fingerprint(call_fp(arguments, left_out=("title",), exact=("n",))))


def json_option(data: bytes) -> object:
    found = json_argument(data.decode("utf-8", "surrogateescape"), "--value")
    assert depth(found) >= 0
    return has_nul(found)


_HELLO = b'{"type":"hello","after_event_id":3,"subscriptions":{"topics":["t"],"names":["n"]},"log_epoch":"e"}'
_MANIFEST = json.dumps({
    "format": 1, "onceward": "0.1.0", "created_at": "2026-11-18T00:00:00Z",
    "database": {"name": "hub.db", "size_bytes": 1, "sha256": "a", "tables": {"t": 1}},
    "ledger": {"name": "ledger.db", "size_bytes": 1, "sha256": "a", "tables": {"t": 1}},
    "blobs": {"count": 1, "size_bytes": 1, "keys_sha256": "a"}, "damaged": ["x"],
}).encode()  # fmt: skip
_ENTRY = json.dumps([
    "fp", "completed", "1", "1", "w", "h", "1", "0", "", "1", "1", "u", "e", "n", "200", "[]", "0", "1", "", "0", "", "0",
    "1", "", "1",
]).encode()  # fmt: skip
_CALL = b'{"_meta":{"idempotency_key":"a"},"arguments":{"meta":{"idempotency-key":"a","x":1},"idempotency_key":"a"}}'
_TAGGED = tuple(
    value.encode(one)
    for one in (
        {"a": (1, b"x", NOW, {1, 2}), 3: frozenset([1])},
        [1.5, None, True, "\ud800", float("nan"), 10**30, datetime.timedelta(1), 2j],
    )
)

TARGETS = (
    Target("forwarded-for", ("hub.security.client_address",), client_address, (b"192.0.2.1, 10.0.0.1", b"[::1]:80,x")),
    Target("host", ("hub.security.hosts",), host, (b"hub.example.com:80", b"[::1]:8787", b"https://app.example.com")),
    Target(
        "token",
        ("hub.security.auth", "hub.security.tokens"),
        token,
        (b"Bearer ow_0123456789ab_" + b"x" * 43, b"onceward.bearer.ow_x", b"name"),
        (InvalidInput,),
    ),
    Target("socket-message", ("hub.events.handshake",), socket_message, (_HELLO, b'{"type":"ping"}', b'["t"]')),
    Target("socket-frames", ("hub.events.framing",), framing, (b"x", b"y" * 126, b"z" * 65536)),
    Target(
        "cursor", ("hub.db.page", "hub.claims.claims", "store.redis.store"), cursor, (b"2026-11-18T00:00:00.000001Z~t1", b"YQBi", b""), (InvalidInput, InvalidOption)
    ),
    Target(
        "task-fields",
        ("hub.tasks.validation", "hub.web_url"),
        task_fields,
        (b"label,other", b"C:\\x\\y.txt", b"2026-12-01T00:00:00+01:00", b"https://example.com/a?b#c", b"docs/a.md", b'{"a":1}'),
    ),
    Target(
        "given-response",
        ("hub.claims.given_response",),
        given_response,
        (b"200\nContent-Type: text/plain\neHk=", b"204\n\n"),
        (InvalidInput,),
    ),
    Target(
        "settings",
        ("hub.config.config",),
        settings,
        (
            b'[hub]\nport = 9000\ngrace_seconds = "5m"\n[idempotency]\ndefault_ttl_hours = 24\n[auth]\nallowed_hosts = ["a"]\n',
            b"[attachments.archive]\nmax_entries = 5\n", b"[hub]\nhead_seconds = 1e3\n[events]\nkeep_days = 2020-01-01\n",
        ),
        (InvalidConfig,),
    ),
    Target("setting-values", ("hub.config.setting",), setting_values, (b"5m", b"1.5", b"AAAAAAAAAAAAAAAAAAAAAA==,", b"whsec_AAAA")),
    Target(
        "store-url",
        ("store.open", "store.redis.connection", "hub.blobs.open", "hub.blobs.s3"),
        store_url,
        (
            b"redis://u:secret@h:6379/0?prefix=a", b"redis+cluster://a:1,b:2", b"postgresql://u:secret@h/db?sslmode=require",
            b"sqlite:///a.db", b"memory:", b"s3://bucket/p?endpoint=http://h:1&region=r", b"file:///a",
        ),
    ),
    Target(
        "mcp-config",
        ("integrations.mcp_wrap.config",),
        wrap_config,
        (b'unlisted = "pass"\nledger = "memory:"\n[tools.pay]\neffect = "irreversible"\nkey_fields = ["a"]\n',),
        (InvalidConfig, InvalidOption),
    ),
    Target("manifest", ("hub.backup.manifest",), manifest, (_MANIFEST,), (InvalidInput,)),
    Target("token-file", ("cli.token_file",), token_file, (b"ow_x\n", b"a b"), (InvalidOption,)),
    Target("stored-value", ("core.value", "core.scalar"), stored_value, (*_TAGGED, b"{}"), (OutcomeNotKept,)),
    Target("recovery-point", ("ledger.recovery",), recovery_point, JSON_SEEDS, (InvalidOption,)),
    Target(
        "redis-replies",
        ("store.redis.resp",),
        redis_replies,
        (b"$3\r\nabc\r\n$0\r\n\r\n", b"-ERR x\r\n$1\r\na\r\n", b"$-1\r\n"),
        (OSError,),
    ),
    Target("redis-entry", ("store.redis.replies",), redis_entry, (_ENTRY + b"\nbody", _ENTRY), (OncewardError,)),
    Target(
        "client-response",
        ("hub.client.responses",),
        client_response,
        (
            b'400 application/problem+json\n{"detail":"d","code":"c","errors":[{"field":"f","message":"m"}]}',
            b'200 application/json\n{"events":[],"has_more":false,"log_epoch":"e","last_event_id":1}',
        ),
    ),
    Target(
        "client-event",
        ("hub.client.follow",),
        client_event,
        (
            b'event: hello_ok\ndata: {"log_epoch":"e","replay_until":3}\n\n', b'event: gap\ndata: {"after_event_id":1}\n\n',
            b'id: 6\ndata: {"event_id":6,"name":"n","topic_id":null,"created_at":"x","data":{}}\n\n',
        ),
        (OncewardError,),
    ),
    Target(
        "client-chat-event", ("hub.client.chat",), client_chat_event, (b'id: 1.2\nevent: delta\ndata: {"text":"x"}\n\n', b":\n\n"), (OncewardError,)
    ),
    Target("provider-response", ("reconcile.json_request",), provider_response, JSON_SEEDS, (NoEvidence,)),
    Target("tool-output", ("integrations.langchain",), tool_output, JSON_SEEDS),
    Target("tool-arguments", ("tools.fingerprint",), tool_arguments, (*JSON_SEEDS, b'{"at":"2026-11-18T00:00:00Z","id":"6f9619ff-8b86-d011-b42d-00c04fc964ff"}'), (OncewardError,)),
    Target("mcp-message", ("integrations.mcp_wrap.message",), mcp_line, (b'{"jsonrpc":"2.0","id":1,"result":{}}',), (ValueError,)),
    Target("mcp-key", ("integrations.mcp_identity",), mcp_key, (_CALL,), (InvalidInput,)),
    Target("json-option", ("cli.argument",), json_option, JSON_SEEDS, (click.BadParameter,)),
)  # fmt: skip
