"""Downloads: complete content, ranges, and headers that are safe for a browser."""

from __future__ import annotations

import datetime
import hashlib
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import pytest
from sqlalchemy import text
from tests.hub.in_process_hub import Client
from tests.hub.tasks import backends
from tests.hub.tasks_hub import UPLOADS, attach, problem, tasks_hub, upload
from tests.waiting import until

from onceward.hub.db.engine import open_database

CONTENT = random.Random(5).randbytes(700_001)
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40)


@pytest.fixture(params=backends.BOTH)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    with tasks_hub(request.param, request, tmp_path) as client:
        yield client


@pytest.fixture
def sqlite_client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """On SQLite with a folder only, for what does not depend on the stores."""
    with tasks_hub("sqlite-folder", request, tmp_path) as client:
        yield client


def content_of(shown: dict[str, str]) -> str:
    return f"/v1/attachments/{shown['id']}/content"


def test_content_comes_back_with_its_headers(client: Client) -> None:
    made = attach(client, CONTENT, name="a b.bin")
    answer = client.get(content_of(made))

    assert answer.status_code == 200
    assert answer.content == CONTENT
    assert answer.headers["etag"] == f'"sha256-{hashlib.sha256(CONTENT).hexdigest()}"'
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="a b.bin"'
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["cache-control"] == "private, no-cache"


def test_a_range_is_served_byte_for_byte(client: Client) -> None:
    path, size = content_of(attach(client, CONTENT)), len(CONTENT)
    chance = random.Random(7)
    asked = [(0, 0), (0, size - 1), (size - 1, size - 1), (262_143, 262_144), (1, size + 500)]
    asked += [(start, chance.randrange(start, size)) for start in chance.sample(range(size), 8)]
    for first, last in asked:
        answer = client.get(path, headers={"Range": f"bytes={first}-{last}"})
        expected = CONTENT[first : last + 1]
        assert answer.status_code == 206
        assert answer.content == expected
        assert answer.headers["content-length"] == str(len(expected))
        assert answer.headers["content-range"] == f"bytes {first}-{min(last, size - 1)}/{size}"
    assert client.get(path, headers={"Range": "bytes=-10"}).content == CONTENT[-10:]
    assert client.get(path, headers={"Range": f"bytes={size - 5}-"}).content == CONTENT[-5:]


def test_an_unsatisfiable_range_is_416_and_an_invalid_one_gets_everything(client: Client) -> None:
    path, size = content_of(attach(client, b"0123456789")), 10
    for wrong in (f"bytes={size}-", "bytes=-0", "bytes=99-100"):
        answer = client.get(path, headers={"Range": wrong})
        assert problem(answer, 416)["code"] == "rangeNotSatisfiable"
        assert answer.headers["content-range"] == f"bytes */{size}"
    for nonsense in ("bytes=", "bytes=5-2", "lines=1-2", "bytes=0-1,3-4", "bytes=a-b", "bytes=1-2x"):
        answer = client.get(path, headers={"Range": nonsense})
        assert (answer.status_code, answer.content) == (200, b"0123456789"), nonsense
    empty = client.get(content_of(attach(client, b"")))
    assert (empty.status_code, empty.content, empty.headers["content-length"]) == (200, b"", "0")


def test_content_that_the_client_already_has_is_not_sent_again(client: Client) -> None:
    path = content_of(attach(client, b"0123456789"))
    etag = client.get(path).headers["etag"]
    for sent in (etag, f'"x", {etag}', f"W/{etag}", "*"):
        answer = client.get(path, headers={"If-None-Match": sent})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag), sent
    changed = client.get(path, headers={"If-None-Match": '"x"', "Range": "bytes=0-1"})
    assert (changed.status_code, changed.content) == (206, b"01")
    same = client.get(path, headers={"Range": "bytes=2-3", "If-Range": etag})
    other = client.get(path, headers={"Range": "bytes=2-3", "If-Range": '"sha256-0"'})
    weak = client.get(path, headers={"Range": "bytes=2-3", "If-Range": f"W/{etag}"})
    assert (same.status_code, same.content) == (206, b"23")
    assert (other.status_code, other.content) == (weak.status_code, weak.content) == (200, b"0123456789")


def test_head_has_the_headers_of_get_and_no_body(client: Client) -> None:
    path = content_of(attach(client, b"0123456789"))
    for headers in ({}, {"Range": "bytes=2-3"}, {"If-None-Match": "*"}, {"Range": "bytes=10-"}):
        get, head = client.get(path, headers=headers), client.request("HEAD", path, headers=headers)
        for answer in (get, head):
            del answer.headers["x-request-id"]
        assert (head.status_code, head.headers) == (get.status_code, get.headers), headers
        if get.status_code != 416:
            assert head.content == b""


SHOWN = [
    (PNG, "a.png", "image/png", True),
    (b"plain text\n", "a.txt", "text/plain", True),
    (b"# Title\n\ntext\n", "a.md", "text/markdown", True),
    (b"<!doctype html><html><script>alert(1)</script></html>", "a.html", "text/html", False),
    (b"<!doctype html><html><script>alert(1)</script></html>", "a.txt", "text/html", False),
    (b'<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>', "a.svg", "image/svg+xml", False),
    (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a.pdf", "application/pdf", False),
    (b"\x00\x01\x02\x03" * 10, "a.png", "application/octet-stream", False),
]


def test_only_passive_content_is_shown_inline(sqlite_client: Client) -> None:
    for content, name, media_type, inline in SHOWN:
        made = attach(sqlite_client, content, name=name)
        answer = sqlite_client.get(content_of(made))
        assert made["media_type"] == answer.headers["content-type"].partition(";")[0] == media_type, content
        assert answer.headers["content-disposition"].startswith("inline" if inline else "attachment"), content


def test_a_declaration_does_not_make_active_content_harmless(sqlite_client: Client) -> None:
    """Also with the check switched off: the bytes decide."""
    html = b"<!doctype html><html><body>x</body></html>"
    for declared in ("text/plain", "image/png", "application/octet-stream"):
        for off in ((), (("reject_media_type_mismatch", "false"),)):
            parts = (("kind", "spec"), ("media_type", declared), ("content", html, "a"), *off)
            assert problem(upload(sqlite_client, *parts), 400)["errors"][0]["field"] == "media_type"


NAMES = {
    "../../etc/passwd": "passwd",
    "C:\\\\dir\\\\a.txt": "a.txt",
    "grün €.txt": "grün €.txt",
    "a;b=%0d%0aX-Evil: 1.txt": "a;b=%0d%0aX-Evil: 1.txt",
    "..": None,
}


def test_a_file_name_is_never_interpreted_and_comes_back_unchanged(sqlite_client: Client) -> None:
    for sent, kept in NAMES.items():
        made = attach(sqlite_client, b"1", name=sent)
        disposition = sqlite_client.get(content_of(made)).headers["content-disposition"]
        assert made.get("filename") == kept
        if kept is None:
            assert "filename" not in disposition
        elif "filename*=" in disposition:
            assert unquote(disposition.rpartition("''")[2]) == kept
        else:
            assert disposition.endswith(f'filename="{kept}"')


def test_expired_content_is_listed_and_not_sent(client: Client) -> None:
    far = attach(client, b"1", ("expires_at", "2999-01-01T00:00:00+01:00"))
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.2)
    made = attach(client, b"2", ("expires_at", soon.isoformat()))
    assert far["expires_at"] == "2998-12-31T23:00:00.000000Z"

    def has_expired() -> bool:
        answer = client.get(content_of(made))
        assert answer.status_code != 200 or answer.content == b"2"
        return answer.status_code != 200

    until(has_expired, "it never expired")
    assert problem(client.get(content_of(made)), 404)["code"] == "expired"
    assert [one.get("expired") for one in client.get(UPLOADS).json()["attachments"]] == [True, None]
    run = client.post(
        "/v1/admin/gc-blobs", json={"dry_run": False, "grace_seconds": 0}, headers={"X-Confirm": "true"}
    ).json()
    assert (run["expired_count"], run["deleted_count"]) == (1, 1)
    assert client.get(UPLOADS).json()["attachments"] == [far]


def test_missing_bytes_and_bytes_in_another_store_are_reported(sqlite_client: Client, tmp_path: Path) -> None:
    gone, elsewhere = attach(sqlite_client, b"gone"), attach(sqlite_client, b"elsewhere")
    file = tmp_path / "blobs/sha256" / gone["sha256"][:2] / gone["sha256"][2:4] / gone["sha256"]
    file.unlink()
    with closing(open_database(f"sqlite:///{tmp_path}/hub.db")) as database, database.write() as tx:
        tx.execute(text("UPDATE blobs SET storage_backend = 's3', blob_key = 'x' WHERE size_bytes = 9"))

    assert problem(sqlite_client.get(content_of(gone)), 404)["code"] == "notFound"
    assert sqlite_client.request("HEAD", content_of(gone)).status_code == 404
    assert (
        "the content is in the blob store 's3', but this hub uses 'local_cas' (hub.blobs)"
        in problem(sqlite_client.get(content_of(elsewhere)), 404)["detail"]
    )
