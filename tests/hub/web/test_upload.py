"""Uploads: whole, in pieces, broken, too large, with a digest, with a key."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.hub.archives.sample_archives import full_overlap, quoted_overlap
from tests.hub.in_process_hub import Client
from tests.hub.media.corpus_containers import OOXML, office, zipped
from tests.hub.tasks import backends
from tests.hub.tasks_hub import UPLOADS, Part, attach, form, left_over, problem, tasks_hub, upload

from onceward.hub.config.config import AttachmentsSettings

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40)
KIND: Part = ("kind", "artifact")
FILE: Part = ("content", b"12345", "a.txt")


@pytest.fixture(params=backends.BOTH)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    with tasks_hub(request.param, request, tmp_path) as client:
        yield client


@pytest.fixture
def sqlite_client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """On SQLite with a folder only, for what does not depend on the stores."""
    with tasks_hub("sqlite-folder", request, tmp_path) as client:
        yield client


def attached(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(UPLOADS).json()["attachments"]
    return found


def blob_files(folder: Path) -> list[Path]:
    return [file for file in (folder / "blobs").rglob("*") if file.is_file() and file.name != "lock"]


def test_fields_may_come_before_and_after_the_file(client: Client) -> None:
    more: list[Part] = [
        ("title", "T"),
        ("labels[]", "b"),
        ("labels", "a"),
        ("meta", '{"k":1}'),
        ("expires_at", "2999-01-01"),
    ]
    before, after = upload(client, KIND, *more, FILE), upload(client, FILE, *reversed(more), KIND)

    assert before.status_code == after.status_code == 201
    own = {"id", "created_at", "updated_at"}
    first, second = ({k: v for k, v in answer.json().items() if k not in own} for answer in (before, after))
    assert first == second
    assert first["labels"] == ["a", "b"]
    assert first["meta"]["k"] == 1


def test_an_upload_may_arrive_in_pieces_of_any_size(client: Client) -> None:
    content = bytes(range(256)) * 40
    body, headers = form([KIND, ("content", content, "a.bin"), ("title", "T")])
    for size in (1, 7, 64, 1000, len(body)):

        async def pieces(size: int = size) -> AsyncIterator[bytes]:
            for start in range(0, len(body), size):
                yield body[start : start + size]

        answer = client.post(UPLOADS, content=pieces(), headers=headers)
        assert answer.status_code == 201, size
        assert answer.json()["sha256"] == hashlib.sha256(content).hexdigest(), size


WRONG: dict[str, list[Part]] = {
    "content": [KIND],
    "kind": [FILE],
    "content twice": [KIND, FILE, FILE],
    "kind twice": [KIND, KIND, FILE],
    "colour": [KIND, FILE, ("colour", "red")],
    "meta is broken": [KIND, FILE, ("meta", "{")],
    "meta is a list": [KIND, FILE, ("meta", "[]")],
    "meta says a key twice": [KIND, FILE, ("meta", '{"a":1,"a":2}')],
    "meta is NaN": [KIND, FILE, ("meta", '{"a":NaN}')],
    "labels": [KIND, FILE, ("labels", "two words")],
    "expires_at": [KIND, FILE, ("expires_at", "2020-01-01")],
    "media_type is none": [KIND, FILE, ("media_type", "nonsense")],
    "media_type is another": [KIND, FILE, ("media_type", "image/png")],
    "title is not UTF-8": [KIND, FILE, ("title", b"\xff\xfe")],
    "title has a NUL": [KIND, FILE, ("title", "a\0b")],
    "reject_media_type_mismatch": [KIND, FILE, ("reject_media_type_mismatch", "perhaps")],
    "kind is unknown": [("kind", "file"), FILE],
    "filename is long": [KIND, ("content", b"1", "x" * 300)],
}


def test_an_invalid_upload_is_refused_by_name_and_leaves_nothing(client: Client, tmp_path: Path) -> None:
    for wrong, parts in WRONG.items():
        body = problem(upload(client, *parts), 400)
        assert wrong.split()[0] in json.dumps(body), wrong
    assert problem(upload(client, KIND, FILE, ("meta", json.dumps({"k": "x" * 17_000}))), 413)
    assert problem(upload(client, KIND, FILE, ("meta", "{")), 400)["detail"].startswith("meta is not valid JSON: ")
    assert problem(upload(client, KIND, FILE, ("title", "x" * 70_000)), 413)
    assert problem(upload(client, KIND, FILE, *[("labels", f"l{n}") for n in range(250)]), 400)

    assert attached(client) == []
    assert left_over(tmp_path) == []
    assert blob_files(tmp_path) == []


def test_a_body_that_is_not_a_form_is_refused(client: Client, tmp_path: Path) -> None:
    body, headers = form([KIND, FILE])
    boundary = headers["content-type"].partition("boundary=")[2]
    for kind in ("application/json", "application/x-www-form-urlencoded", "multipart/mixed; boundary=x", ""):
        assert problem(client.post(UPLOADS, content=body, headers={"content-type": kind}), 415)["code"], kind
    broken = {
        "no boundary": (body, "multipart/form-data"),
        "another boundary": (body, "multipart/form-data; boundary=other"),
        "cut in the file": (body[: body.index(b"12345") + 3], headers["content-type"]),
        "cut in the end": (body[:-4], headers["content-type"]),
        "empty": (b"", headers["content-type"]),
        "part without a name": (
            b"--%b\r\nContent-Type: text/plain\r\n\r\nx\r\n--%b--\r\n" % ((boundary.encode(),) * 2),
            headers["content-type"],
        ),
        "header without an end": (b"--%b\r\nX: " % boundary.encode() + b"x" * 100_000, headers["content-type"]),
        "boundary of a page": (body, f"multipart/form-data; boundary={'x' * 5000}"),
    }
    for name, (sent, kind) in broken.items():
        assert problem(client.post(UPLOADS, content=sent, headers={"content-type": kind}), 400)["code"], name

    assert attached(client) == []
    assert left_over(tmp_path) == []


def test_file_names_are_read_in_both_encodings(sqlite_client: Client) -> None:
    head = b"--b\r\nContent-Disposition: form-data; name=kind\r\n\r\nspec\r\n--b\r\n"
    tail = b"\r\n\r\n12345\r\n--b--\r\n"
    for disposition, expected in (
        (b"Content-Disposition: form-data; name=content; filename=plain.txt", "plain.txt"),
        (b'content-disposition: form-data; filename="q.txt"; name="content"', "q.txt"),
        (b"Content-Disposition: form-data; name=content; filename*=UTF-8''gr%C3%BCn.txt", "grün.txt"),
        (b"Content-Disposition: form-data; name=content", None),
    ):
        answer = sqlite_client.post(
            UPLOADS, content=head + disposition + tail, headers={"content-type": "multipart/form-data; boundary=b"}
        )
        assert answer.status_code == 201, answer.text
        assert answer.json().get("filename") == expected


def test_an_empty_file_is_a_valid_upload(client: Client) -> None:
    made = attach(client, b"", name="")

    assert (made["size_bytes"], made["sha256"]) == (0, hashlib.sha256().hexdigest())
    assert "filename" not in made


def test_a_declared_digest_must_match(client: Client, tmp_path: Path) -> None:
    body, headers = form([KIND, FILE])

    def promise(data: bytes) -> str:
        return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"

    for name in ("Content-Digest", "Repr-Digest"):
        right = client.post(UPLOADS, content=body, headers={**headers, name: promise(body)})
        file = client.post(UPLOADS, content=body, headers={**headers, name: f"md5=:AA==:, {promise(b'12345')}"})
        wrong = client.post(UPLOADS, content=body, headers={**headers, name: promise(b"other")})
        nonsense = client.post(UPLOADS, content=body, headers={**headers, name: "sha-256=:AAA:"})
        assert (right.status_code, file.status_code) == (201, 201)
        assert "digest" in problem(wrong, 400)["detail"]
        assert "digest" in problem(nonsense, 400)["detail"]
        bare = client.post(UPLOADS, content=body, headers={**headers, name: "sha-256=abc"})
        assert "digest" in problem(bare, 400)["detail"]
    both = {"Content-Digest": promise(body), "Repr-Digest": promise(b"other")}
    assert "digest" in problem(client.post(UPLOADS, content=body, headers={**headers, **both}), 400)["detail"]
    keyed = {**headers, "Idempotency-Key": "k1", "Content-Digest": promise(body)}
    first, again = (client.post(UPLOADS, content=body, headers=keyed) for _ in range(2))
    assert (first.status_code, again.text) == (201, first.text)
    lie = client.post(
        UPLOADS, content=body, headers={**keyed, "Idempotency-Key": "k2", "Content-Digest": promise(b"x")}
    )
    assert [error["field"] for error in problem(lie, 400)["errors"]] == ["Content-Digest"]

    assert len(attached(client)) == 5
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("damage", [(b"12345", b"12x45"), (b"Content-Disposition", b"Content-Dispositiox")], ids=str)
@pytest.mark.parametrize("name", ["Content-Digest", "Repr-Digest"])
def test_a_keyed_upload_that_was_damaged_in_transit_does_not_use_the_key(
    client: Client, name: str, damage: tuple[bytes, bytes]
) -> None:
    body, headers = form([KIND, FILE])
    # Of the whole body, or of the file, which is another fingerprint than that of what came.
    meant = body if name == "Content-Digest" else b"12345"
    promised = f"sha-256=:{base64.b64encode(hashlib.sha256(meant).digest()).decode()}:"
    keyed = {**headers, "Idempotency-Key": "k1", name: promised}

    damaged = client.post(UPLOADS, content=body.replace(*damage), headers=keyed)
    whole, again = (client.post(UPLOADS, content=body, headers=keyed) for _ in range(2))

    assert problem(damaged, 400)
    assert (whole.status_code, again.text) == (201, whole.text)
    assert len(attached(client)) == 1


def test_a_keyed_retry_is_replayed_with_any_boundary(client: Client) -> None:
    key = {"Idempotency-Key": "k1"}
    first = upload(client, KIND, FILE, headers=key, boundary="one")
    again = upload(client, KIND, FILE, headers=key, boundary="another")
    other = upload(client, KIND, ("content", b"54321", "a.txt"), headers=key)

    assert (first.status_code, again.status_code, again.text) == (201, 201, first.text)
    assert problem(other, 422)
    assert len(attached(client)) == 1


SMALL = AttachmentsSettings(max_upload_bytes=1000)


@pytest.mark.parametrize("key", [None, "k1"], ids=["without-key", "with-key"])
def test_an_upload_over_the_limit_is_refused_while_it_arrives(
    request: pytest.FixtureRequest, tmp_path: Path, key: str | None
) -> None:
    def keyed(number: int) -> dict[str, str]:
        return {} if key is None else {"Idempotency-Key": f"{key}-{number}"}

    with tasks_hub("sqlite-folder", request, tmp_path, SMALL) as client:
        assert upload(client, KIND, ("content", b"x" * 1000, "a"), headers=keyed(1)).status_code == 201
        too_large = upload(client, KIND, ("content", b"x" * 1001, "a"), headers=keyed(2))
        assert problem(too_large, 413)["code"] == "payloadTooLarge"
        body, headers = form([KIND, ("content", b"x" * 3_000_000, "a")])
        taken = 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal taken
            for start in range(0, len(body), 10_000):
                taken += 1
                yield body[start : start + 10_000]

        chunked = client.post(UPLOADS, content=pieces(), headers={**headers, **keyed(3)})
        assert problem(chunked, 413)["code"] == "payloadTooLarge"
        assert len(attached(client)) == 1
    assert left_over(tmp_path) == []
    assert len(blob_files(tmp_path)) == 1


def test_data_after_the_form_is_not_read_forever(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Otherwise a body without end after the form would hold the connection for as long as its sender likes."""
    with tasks_hub("sqlite-folder", request, tmp_path, SMALL) as client:
        body, headers = form([KIND, FILE])
        answer = client.post(UPLOADS, content=body + b"x" * 2_000_000, headers=headers)
        assert problem(answer, 413)["code"] == "payloadTooLarge"
        assert upload(client, KIND, FILE).status_code == 201
    assert len(blob_files(tmp_path)) == 1


DOCX = f"{OOXML}.wordprocessingml.document"
_DOCX = zipped(office("word", "document.xml"))
DECLARED: list[tuple[bytes, str, str | None, tuple[str, str] | None]] = [
    (b'{"a": 1}', "a", "application/json", ("application/json", "declared")),
    (b'{"a": 1}', "a.json", None, ("application/json", "sniffed")),
    (b"# Title\n", "a", "text/markdown", ("text/markdown", "declared")),
    (b"# Title\n", "a.md", None, ("text/markdown", "inferred")),
    (b"a,b\n1,2\n", "a", "Text/CSV; charset=utf-8", ("text/csv", "declared")),
    (b"words\n", "a", None, ("text/plain", "sniffed")),
    (PNG, "a.txt", None, ("image/png", "sniffed")),
    (b"PK\x05\x06" + bytes(18), "a", "application/x-zip", ("application/x-zip", "declared")),
    (_DOCX, "a.docx", None, (DOCX, "sniffed")),
    (_DOCX, "a.docx", DOCX, (DOCX, "declared")),
    (_DOCX, "a.zip", "application/zip", None),
    (PNG, "a.png", "image/jpeg", None),
    (b"words\n", "a", "image/png", None),
    (b"<!doctype html><p>x", "a.txt", "text/plain", None),
    (b"<!doctype html><p>x", "a.html", "text/html", ("text/html", "declared")),
]


def test_the_declared_media_type_is_used_if_the_bytes_agree(sqlite_client: Client) -> None:
    for content, name, declared, kept in DECLARED:
        parts: list[Part] = [KIND, ("content", content, name)]
        if declared is not None:
            parts.append(("media_type", declared))
        answer = upload(sqlite_client, *parts)
        if kept is None:
            assert problem(answer, 400)["errors"][0]["field"] == "media_type", declared
            continue
        assert answer.status_code == 201, answer.text
        assert (answer.json()["media_type"], answer.json()["media_type_source"]) == kept


def test_an_admin_may_let_the_sniffed_type_win(sqlite_client: Client) -> None:
    answer = upload(
        sqlite_client,
        KIND,
        ("content", PNG, "a"),
        ("media_type", "image/jpeg"),
        ("reject_media_type_mismatch", "false"),
    )

    assert (answer.json()["media_type"], answer.json()["media_type_source"]) == ("image/png", "sniffed")


def test_only_types_on_the_allow_list_are_accepted(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    settings = AttachmentsSettings(allowed_media_types=("image/*", "text/plain"))
    with tasks_hub("sqlite-folder", request, tmp_path, settings) as client:
        assert upload(client, KIND, ("content", PNG, "a")).status_code == 201
        assert upload(client, KIND, ("content", b"words", "a")).status_code == 201
        for content in (b'{"a": 1}', b"%PDF-1.7\n", b"\x00\x01\x02"):
            assert problem(upload(client, KIND, ("content", content, "a")), 400)["errors"][0]["field"] == "media_type"


def test_the_allow_list_is_checked_against_the_bytes_and_the_declared_type(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Neither a declared type nor a file name gets bytes past the allow-list, also with the type check switched off."""
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    settings = AttachmentsSettings(allowed_media_types=("IMAGE/*; q=1", DOCX, "application/ld+json"))
    with tasks_hub("sqlite-folder", request, tmp_path, settings) as client:
        for content, name, declared in (
            (b"words", "a", "image/svg+xml"),
            (b"words", "a", "Image/SVG+XML; charset=utf-8"),
            (b"words", "a.svg", ""),
            (b"words", "a.svg", "image/svg+xml"),
            (b"", "a", "image/svg+xml"),
            (b"", "a.svg", ""),
            (b"\x00\x01\x02", "a", "image/x-my-own"),
            (_zip(), "a.docx", DOCX),
            (b'{"a": 1}', "a", "application/ld+json"),
            (PNG, "a", "application/json"),
        ):
            for check in ("true", "false"):
                field = ("reject_media_type_mismatch", check)
                answer = upload(client, KIND, ("content", content, name), ("media_type", declared), field)
                if content == PNG and check == "false":
                    # The bytes decide, and they are on the list.
                    assert answer.json()["media_type"] == "image/png"
                    continue
                assert problem(answer, 400)["errors"][0]["field"] == "media_type", (content, name, declared, check)
        assert len(attached(client)) == 1
        for content, name, declared in ((svg, "a", "image/svg+xml"), (PNG, "a", "image/apng"), (_DOCX, "a", "")):
            assert upload(client, KIND, ("content", content, name), ("media_type", declared)).status_code == 201


def test_the_declared_type_of_a_link_must_be_on_the_allow_list_too(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A type that only the file name suggests is not a declared type, and is not stored."""
    settings = AttachmentsSettings(allowed_media_types=("image/*",))
    with tasks_hub("sqlite-folder", request, tmp_path, settings) as client:

        def link(**fields: str) -> httpx.Response:
            return client.post(f"{UPLOADS}/link", json={"kind": "spec", **fields})

        for target in ({"repo_path": "docs/a.png"}, {"external_url": "https://example.com/a.png"}):
            body = problem(link(**target, media_type="Application/PDF"), 400)
            assert body["errors"] == [{"field": "media_type", "message": "application/pdf is not allowed"}]
        assert attached(client) == []
        for kept in ({"media_type": "IMAGE/PNG"}, {}, {"media_type": " "}):
            assert link(repo_path="docs/a.pdf", **kept).status_code == 201
        assert link(repo_path="docs/a").status_code == 201
        kinds = [(one.get("media_type"), one["media_type_source"]) for one in attached(client)]

    pdf = ("application/pdf", "inferred")
    assert kinds == [(None, "unknown"), pdf, pdf, ("image/png", "declared")]


def _zip(path: str = "a.txt", *, count: int = 1) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(count):
            archive.writestr(path if number == 0 else f"{number}", b"1")
    return packed.getvalue()


def _tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"1"))
    return packed.getvalue()


def test_archives_are_inspected_if_configured(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with tasks_hub("sqlite-folder", request, tmp_path, AttachmentsSettings(enable_archive_inspection=True)) as client:
        packed, tarred = attach(client, _zip(), name="a.zip"), attach(client, _tar(), name="a.tgz")
        assert packed["meta"]["archive"]["entries"] == 1
        assert "archive" in tarred["meta"]
        for bad in (_zip("../way/out"), _zip("x" * 2000), _zip(count=10_001), _zip()[:-30]):
            assert problem(upload(client, KIND, ("content", bad, "a.zip")), 400)
        assert len(attached(client)) == 2


@pytest.mark.parametrize("bomb", [quoted_overlap(20, 10_000), full_overlap(20, 10_000)], ids=["quoted", "full"])
def test_a_zip_with_overlapping_entries_is_refused_and_leaves_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, bomb: bytes
) -> None:
    with tasks_hub("sqlite-folder", request, tmp_path, AttachmentsSettings(enable_archive_inspection=True)) as client:
        body = problem(upload(client, KIND, ("content", bomb, "a.zip")), 400)

        assert "overlap" in json.dumps(body)
        assert attached(client) == []
    assert left_over(tmp_path) == []
    assert blob_files(tmp_path) == []


def test_an_office_document_is_inspected_as_an_archive(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with tasks_hub("sqlite-folder", request, tmp_path, AttachmentsSettings(enable_archive_inspection=True)) as client:
        made = attach(client, _DOCX, name="a.docx")

    assert (made["media_type"], made["meta"]["archive"]["entries"]) == (DOCX, 3)


def test_archives_are_not_inspected_by_default(sqlite_client: Client) -> None:
    assert "archive" not in attach(sqlite_client, _zip("../way/out"), name="a.zip").get("meta", {})
