"""Parsers of ingested messages and of uploaded files: mail, Telegram, archives of messages, archives, media types."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.engine import Target
from tests.fuzz.hub_targets import as_file

from onceward.core.json_text import has_nul
from onceward.errors import InvalidInput
from onceward.hub.archives import ArchiveLimits, inspect
from onceward.hub.ingest.backfill.json_lines import JsonLines
from onceward.hub.ingest.backfill.json_reader import JsonReader
from onceward.hub.ingest.backfill.mbox import Mbox, is_mbox
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.backfill.telegram_export import TelegramExport
from onceward.hub.ingest.email.html_text import text_of_html
from onceward.hub.ingest.email.normalize import normalize_email, normalize_mail
from onceward.hub.ingest.entries.draft import draft_of
from onceward.hub.ingest.normalize.dates import date_bucket, parse_time, source_time
from onceward.hub.ingest.normalize.subject import subject_base, thread_subject
from onceward.hub.ingest.normalize.text import clean
from onceward.hub.ingest.normalize.url import canonical, find_urls, without_tracking
from onceward.hub.ingest.telegram.normalize import normalize_exported, normalize_telegram
from onceward.hub.media.declared import is_allowed, is_inline_safe, settle, settle_link
from onceward.hub.media.detect import of_sample
from onceward.hub.media.sample import take

LIMITS = ArchiveLimits(max_entries=100, max_total_unpacked_bytes=1024**2, max_path_length=100)


def object_of(data: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request, which has been checked before; an empty one for anything else."""
    try:
        found = json.loads(data, parse_constant=lambda _name: None)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def storable(payload: Any) -> int:
    """Check that a payload can be stored: JSON without NUL and lone surrogates."""
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
    text.encode()
    assert not has_nul(payload)
    return len(text).bit_length()


def mail(data: bytes) -> int:
    return storable(normalize_mail(data, backfill=True))


def mail_form(data: bytes) -> int:
    return storable(normalize_email(object_of(data)))


def telegram(data: bytes) -> int:
    return storable(normalize_telegram(object_of(data)))


def exported(data: bytes) -> int:
    found = object_of(data)
    chat, message = found.get("chat"), found.get("message")
    return storable(
        normalize_exported(chat if isinstance(chat, dict) else {}, message if isinstance(message, dict) else {})
    )


def url(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    find_urls(text)
    found = canonical(text)
    if found is not None:
        assert canonical(found) == found, "canonicalising a second time changes it"
        plain = without_tracking(found)
        assert without_tracking(plain) == plain
        found.encode("ascii")
    return found


def texts(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    once = clean(text)
    assert clean(once) == once
    base = subject_base(text)
    assert subject_base(base) == base
    return len(text_of_html(text)), thread_subject(text)


def dates(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    found = parse_time(text), date_bucket(text), source_time(text)
    if text.isascii() and text.isdigit() and len(text) < 19:
        parse_time(int(text))
        source_time(int(text))
    return found


def archive_of_messages(kind: Callable[[Path, Normalizer], Any], name: str) -> Callable[[bytes], int]:
    """Return a function that reads a whole archive of messages."""

    def read(data: bytes) -> int:
        source = kind(as_file(name, data), Normalizer())
        source.mark()
        return sum(1 for item in source.items(None) if _normalized(item))

    return read


def _normalized(item: Any) -> bool:
    """Return whether a message becomes a row. A line may be a ready payload, which only `draft_of` checks."""
    try:
        payload = item.payload()
        draft = None if payload is None else draft_of(payload, {})
    except InvalidInput:
        return False
    if draft is not None:
        storable(list(draft[1]))
    return True


def json_values(data: bytes) -> object:
    """Read with the smallest pieces, so that a piece ends everywhere."""
    reader = JsonReader(io.BytesIO(data), "x", piece=3)
    return reader.value()


def archive(data: bytes) -> object:
    return inspect(as_file("archive", data), "application/zip", LIMITS)


def media_type(data: bytes) -> object:
    name, _, content = data.partition(b"\n")
    filename = name.decode("utf-8", "replace")
    sniffed = of_sample(take(io.BytesIO(content)), filename)
    assert sniffed.media_type.count("/") == 1
    assert sniffed.media_type.isascii()
    is_inline_safe(sniffed.media_type)
    return settle(sniffed, None, filename, reject_mismatch=False).media_type


def declared(data: bytes) -> object:
    text, _, address = data.decode("utf-8", "replace").partition("\n")
    sniffed = of_sample(take(io.BytesIO(b"text")))
    found: list[object] = []
    asks: tuple[Callable[[], object], ...] = (
        lambda: settle(sniffed, text, None, reject_mismatch=True),
        lambda: settle_link(text, address),
        lambda: settle_link(None, address),
    )
    for ask in asks:
        try:
            found.append(ask())
        except InvalidInput:
            found.append(None)
    return found, is_allowed(text, ("image/*", "text/plain"))


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a/b.txt", "text" * 50)
        opened.writestr("c.tar", _tar())
    return file.getvalue()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.TarFile(fileobj=file, mode="w") as opened:
        member = tarfile.TarInfo("x" * 120)
        member.size = 5
        opened.addfile(member, io.BytesIO(b"bytes"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../x"
        opened.addfile(link)
    return file.getvalue()[:4096]


def _files() -> Iterator[bytes]:
    yield b"a.png\n\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00"
    yield b'a.json\n{"type":"FeatureCollection","features":[],"asset":{"version":"2.0"},"@context":1,"@type":[1]}'
    yield b"a.csv\na,b,c\n1,2,3\n4,5,6\n"
    yield b"a.html\n<!doctype html><html><body>x</body></html>"
    yield b"a.svg\n<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>"
    yield b"a.docx\n" + _zip()
    yield b"a.mp4\n\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom"
    yield b"a.ole\n\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
    yield b"a.txt\nplain text\n"


_MAIL = (
    (
        b"From: Ada <ada@example.com>\r\nTo: b@example.com\r\nSubject: =?utf-8?q?Re=3A_caf=C3=A9?=\r\nMessage-ID: <a@b>\r\n"
        b"Date: Wed, 18 Nov 2026 10:00:00 +0100\r\nReferences: <x@y> <z@w>\r\nList-Id: <l.example.com>\r\n"
        b'Content-Type: multipart/alternative; boundary="b"\r\nMIME-Version: 1.0\r\n\r\n'
        b"--b\r\nContent-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\ncaf=E9\r\n"
        b"--b\r\nContent-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\nPGI+eDwvYj4=\r\n--b--\r\n"
    ),
    b"Subject: s\n\nbody\n",
    b"From: a\nContent-Type: text/plain; charset*=us-ascii'en'utf-8; name*0=a; name*1*=%41\n\nx",
)
_TELEGRAM = (
    b'{"text":"see https://example.com/?utm_source=x","source":{"chat_id":1,"message_id":2,"url":null,"date":1}}',
    (
        b'{"update_id":1,"message":{"message_id":2,"date":1,"chat":{"id":-1001,"type":"channel"},"text":"a b",'
        b'"entities":[{"type":"text_link","offset":0,"length":1,"url":"https://e.com"}],"from":{"first_name":"A"}}}'
    ),
    b'{"message_id":2,"date":1,"chat":{"id":5,"type":"private"},"caption":"c","photo":[{"file_id":"f"}]}',
)
_EXPORTED = (
    (
        b'{"chat":{"id":5,"type":"personal_chat","name":"n"},"message":{"id":1,"type":"message","date":"2026-11-18T10:00:00",'
        b'"date_unixtime":"1","from":"A","from_id":"user1","text":["a",{"type":"link","text":"https://e.com"}]}}'
    ),
)
_EXPORT = (
    (
        b'{"name":"n","type":"personal_chat","id":5,"messages":[{"id":1,"type":"message","date":"2026-11-18T10:00:00",'
        b'"text":"hello"},{"id":2,"type":"service"}],"chats":{"list":[{"id":6,"messages":[]}]}}'
    ),
)

TARGETS = (
    Target(
        "mail",
        ("hub.ingest.email.normalize", "hub.ingest.email.headers", "hub.ingest.email.encodings"),
        mail,
        _MAIL,
        (InvalidInput,),
        (b"Content-Type: message/rfc822\n", b"boundary=", b"--b", b"Date: ", b"=?utf-8?b?"),
    ),
    Target(
        "mail-form",
        ("hub.ingest.email.normalize",),
        mail_form,
        (
            b'{"raw_text":"x","from":"a@b","subject":"s","source":{"message_id":"<a@b>","date":"2026-11-18"}}',
            b'{"raw_message":"Subject: s\\n\\nx"}', b'{"raw_message_base64":"U3ViamVjdDogcwoKeA==","headers":{"list-id":["x"]}}',
        ),
        (InvalidInput,),
    ),
    Target(
        "telegram", ("hub.ingest.telegram.entry", "hub.ingest.telegram.links"), telegram, _TELEGRAM, (InvalidInput,)
    ),
    Target("telegram-exported", ("hub.ingest.telegram.entry",), exported, _EXPORTED, (InvalidInput,)),
    Target(
        "url",
        ("hub.ingest.normalize.url", "hub.ingest.normalize.keys"),
        url,
        (
            b"https://Example.com:443/a/../b?utm_source=x&b=%41#frag", b"http://xn--bcher-kva.example/%7euser",
            b"see https://youtu.be/x?t=5, and http://[::1]/", b"mailto:a@b", "https://b\u00fccher.example/\u00e9".encode(),
        ),
    ),
    Target(
        "texts",
        ("hub.ingest.normalize.url",),
        texts,
        (b"Re: AW: Fwd: [list] x", b"<p>a<br>b &amp; c<script>x</script><ul><li>d", b"a\xcc\x81 \r\n b", b"<a href='x'>y"),
    ),
    Target(
        "dates",
        ("hub.ingest.normalize.dates",),
        dates,
        (b"Wed, 18 Nov 2026 10:00:00 +0100", b"2026-11-18T10:00:00.5Z", b"1763460000", b"18 Nov 26 1:2 EST", b"2026-11-18"),
    ),
    Target(
        "mbox",
        ("hub.ingest.email.normalize",),
        archive_of_messages(Mbox, "a.mbox"),
        tuple(b"From a@b Wed Nov 18 10:00:00 2026\n" + one + b"\n>From x\n\n" for one in _MAIL),
        (InvalidInput,),
    ),
    Target(
        "json-lines",
        ("hub.ingest.backfill.json_lines",),
        archive_of_messages(JsonLines, "a.jsonl"),
        (b"\n".join((*_TELEGRAM, b'{"raw_text":"x"}')), b'\xef\xbb\xbf{"source":"telegram","title":"t"}\n'),
        (InvalidInput,),
    ),
    Target(
        "telegram-export",
        ("hub.ingest.backfill.json_reader",),
        archive_of_messages(TelegramExport, "result.json"),
        _EXPORT,
        (InvalidInput,),
    ),
    Target("json-reader", ("hub.ingest.backfill.json_reader",), json_values, (_EXPORT[0], b" 12345 ", b'"x'), (InvalidInput,)),
    Target("mbox-detect", (), is_mbox, (b"From a@b Wed Nov 18 10:00:00 2026\nx", b"From - Wed Nov 18 10:00 UTC 2026\n")),
    Target(
        "archive",
        ("hub.archives.zip", "hub.archives.tar", "hub.archives.gzip"),
        archive,
        (_zip(), _tar(), gzip.compress(_tar(), mtime=0), gzip.compress(b"x" * 99, mtime=0)),
        (InvalidInput,),
        (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"\x1f\x8b\x08", b"ustar\x0000", b"\xff\xff\xff\xff", bytes(512)),
    ),
    Target(
        "media-type",
        ("hub.media.containers", "hub.media.signatures", "hub.media.documents", "hub.media.extensions"),
        media_type,
        tuple(_files()),
        words=(b'"type":[]', b'{"asset":1}', b"%PDF-1.7", b"GIF89a", b"RIFF", b"OggS", b"\x1aE\xdf\xa3", b"<?xml", b"<html"),
    ),
    Target(
        "declared-media-type",
        ("hub.media.declared", "hub.media.hierarchy", "hub.media.extensions"),
        declared,
        (b"text/plain; charset=utf-8\nhttps://e.com/a.png?x", b"IMAGE/PNG\nsrc/a.py", b"*/*\n//["),
    ),
)  # fmt: skip
