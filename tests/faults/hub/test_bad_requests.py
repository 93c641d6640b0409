"""Requests that a running hub refuses: the documented problem, and nothing is written."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from tests.faults.hub.conftest import Site
from tests.faults.hub_database import written
from tests.hub.raw_client import Caller, HubResponse
from tests.waiting import SECONDS_MAX

TOPICS = "/api/v1/topics"
BODY_BYTES_MAX = 1024 * 1024


@contextmanager
def nothing_written(site: Site) -> Iterator[None]:
    before = written(site.database)
    yield
    assert written(site.database) == before


def deep(levels: int) -> bytes:
    return b'{"kind":"k","value_json":{"a":' + b"[" * levels + b"]" * levels + b"}}"


# Bodies that cannot be read. Each is sent to a route that would take something like it.
MALFORMED: dict[str, tuple[str, bytes]] = {
    "empty": ("topics", b""),
    "blank": ("topics", b"  \n"),
    "cut-off": ("topics", b'{"title":"a'),
    "more-behind": ("topics", b'{"title":"a"}{}'),
    "single-quotes": ("topics", b"{'title':'a'}"),
    "a-key-twice": ("topics", b'{"title":"a","title":"b"}'),
    "a-key-twice-inside": ("attachments", b'{"kind":"k","value_json":{"a":{"b":1,"b":1}}}'),
    "a-key-twice-escaped": ("attachments", rb'{"kind":"k","value_json":{"a":1,"\u0061":1}}'),
    "nan": ("attachments", b'{"kind":"k","value_json":{"a":NaN}}'),
    "infinity": ("attachments", b'{"kind":"k","value_json":{"a":[-Infinity]}}'),
    "too-large-a-number": ("attachments", b'{"kind":"k","value_json":{"a":1e999}}'),
    "too-many-digits": ("attachments", b'{"kind":"k","value_json":{"a":' + b"9" * 5000 + b"}}"),
    "nul": ("topics", rb'{"title":"a\u0000b"}'),
    "raw-nul": ("topics", b'{"title":"a\x00b"}'),
    "nul-in-a-name": ("attachments", rb'{"kind":"k","value_json":{"a\u0000":1}}'),
    "lone-surrogate": ("topics", rb'{"title":"\ud800"}'),
    "lone-low-surrogate": ("attachments", rb'{"kind":"k","value_json":{"a":["\udc00\ud800"]}}'),
    "encoded-surrogate": ("topics", b'{"title":"\xed\xa0\x80"}'),
    "not-utf-8": ("topics", b'{"title":"\xff"}'),
    "utf-16": ("topics", '{"title":"a"}'.encode("utf-16")),
    "byte-order-mark": ("topics", b'\xef\xbb\xbf{"title":"a"}'),
    "63-levels-more": ("attachments", deep(63)),
    "very-deep": ("attachments", deep(100_000)),
    "never-closed": ("topics", b"[" * 500_000),
    "a-list": ("topics", b'[{"title":"a"}]'),
    "null": ("topics", b"null"),
    "a-text": ("topics", b'"title"'),
    "a-number": ("topics", b"1"),
}

LINK = {"url": "https://example.com/"}

# Bodies that can be read and are not accepted: where to, what, and the status.
NOT_ACCEPTED: dict[str, tuple[str, Any, int]] = {
    "no-title": ("topics", {}, 400),
    "title-is-null": ("topics", {"title": None}, 400),
    "title-is-a-number": ("topics", {"title": 1}, 400),
    "title-is-true": ("topics", {"title": True}, 400),
    "title-is-a-list": ("topics", {"title": ["a"]}, 400),
    "unknown-field": ("topics", {"title": "a", "color": "red"}, 400),
    "id-is-not-ours-to-choose": ("topics", {"title": "a", "id": "top_1"}, 400),
    "blank-title": ("topics", {"title": " \t\u00a0"}, 400),
    "title-of-513-bytes": ("topics", {"title": "x" * 513}, 400),
    "title-of-514-bytes-in-257-characters": ("topics", {"title": "é" * 257}, 400),
    "no-content": ("messages", {"sender": "a"}, 400),
    "blank-sender": ("messages", {"sender": " ", "content": "a"}, 400),
    "sender-of-256-bytes": ("messages", {"sender": "x" * 256, "content": "a"}, 400),
    "blank-content": ("messages", {"sender": "a", "content": ""}, 400),
    "content-over-64-kib": ("messages", {"sender": "a", "content": "x" * 65_537}, 413),
    "content-over-64-kib-in-fewer-characters": ("messages", {"sender": "a", "content": "é" * 32_769}, 413),
    "content-is-an-object": ("messages", {"sender": "a", "content": {}}, 400),
    "no-value": ("attachments", {"kind": "k"}, 400),
    "value-is-null": ("attachments", {"kind": "k", "value_json": None}, 400),
    "value-is-a-list": ("attachments", {"kind": "k", "value_json": [1]}, 400),
    "value-is-text-of-an-object": ("attachments", {"kind": "k", "value_json": '{"a":1}'}, 400),
    "value-over-16-kib": ("attachments", {"kind": "k", "value_json": {"a": "x" * (16 * 1024 - 7)}}, 413),
    "value-over-16-kib-with-a-key": (
        "attachments", {"kind": "k", "value_json": {"a": "é" * 8189}, "dedupe_key": "d"}, 413,
    ),
    "integer-beyond-a-double": ("attachments", {"kind": "k", "value_json": {"a": 2**53}}, 400),
    "integer-beyond-a-double-below": ("attachments", {"kind": "k", "value_json": {"a": [-(2**53)]}}, 400),
    "blank-kind": ("attachments", {"kind": " ", "value_json": {}}, 400),
    "kind-of-65-bytes": ("attachments", {"kind": "k" * 65, "value_json": {}}, 400),
    "kind-is-a-number": ("attachments", {"kind": 1, "value_json": {}}, 400),
    "blank-key": ("attachments", {"kind": "k", "key": " ", "value_json": {}}, 400),
    "key-of-513-bytes": ("attachments", {"kind": "k", "key": "k" * 513, "value_json": {}}, 400),
    "key-is-a-number": ("attachments", {"kind": "k", "key": 1, "value_json": {}}, 400),
    "empty-dedupe-key": ("attachments", {"kind": "k", "dedupe_key": "", "value_json": {}}, 400),
    "blank-dedupe-key": ("attachments", {"kind": "k", "dedupe_key": "\n", "value_json": {}}, 400),
    "dedupe-key-of-514-bytes": ("attachments", {"kind": "k", "dedupe_key": "é" * 257, "value_json": {}}, 400),
    "dedupe-key-is-a-number": ("attachments", {"kind": "k", "dedupe_key": 7, "value_json": {}}, 400),
    "unknown-message": ("attachments", {"kind": "k", "value_json": {}, "source_message_id": "msg_none"}, 400),
    "message-is-empty": ("attachments", {"kind": "k", "value_json": {}, "source_message_id": ""}, 400),
    "unknown-attachment-field": ("attachments", {"kind": "k", "value_json": {}, "value": 1}, 400),
    "link-without-url": ("attachments", {"kind": "link", "value_json": {"title": "A"}}, 400),
    "link-in-capitals-without-url": ("attachments", {"kind": "LiNK", "value_json": {}}, 400),
    "url-is-a-number": ("attachments", {"kind": "url", "value_json": {"url": 1}}, 400),
    "url-is-a-script": ("attachments", {"kind": "url", "value_json": {"url": "javascript:alert(1)"}}, 400),
    "url-is-a-file": ("attachments", {"kind": "url", "value_json": {"url": "file:///etc/passwd"}}, 400),
    "url-without-host": ("attachments", {"kind": "url", "value_json": {"url": "https:///a"}}, 400),
    "url-with-a-blank": ("attachments", {"kind": "url", "value_json": {"url": "https://a.example/ b"}}, 400),
    "url-with-a-line-break": ("attachments", {"kind": "url", "value_json": {"url": "https://a.example/\n"}}, 400),
    "url-with-a-bad-port": ("attachments", {"kind": "url", "value_json": {"url": "https://a.example:99999/"}}, 400),
    "url-of-2049": ("attachments", {"kind": "url", "value_json": {"url": "https://a.example/".ljust(2049, "x")}}, 400),
    "link-title-with-control": ("attachments", {"kind": "link", "value_json": {**LINK, "title": "a\u001bb"}}, 400),
    "link-title-is-a-number": ("attachments", {"kind": "link", "value_json": {**LINK, "title": 1}}, 400),
    "link-description-with-control": (
        "attachments", {"kind": "link", "value_json": {**LINK, "description": "a\u0085b"}}, 400,
    ),
}  # fmt: skip


@pytest.fixture
def topic(site: Site, topics_of_sites: dict[int, str]) -> str:
    """One topic for all refused requests of a site: none of them may write to it."""
    if site.port not in topics_of_sites:
        topics_of_sites[site.port] = site.ada.topic("refusals")
    return topics_of_sites[site.port]


@pytest.fixture(scope="module")
def topics_of_sites() -> dict[int, str]:
    return {}


def path_to(collection: str, topic: str) -> str:
    return TOPICS if collection == "topics" else f"{TOPICS}/{topic}/{collection}"


@pytest.mark.parametrize("name", MALFORMED)
def test_an_unreadable_body_is_refused(site: Site, topic: str, name: str) -> None:
    collection, data = MALFORMED[name]
    with nothing_written(site):
        plain = site.ada.post(path_to(collection, topic), data=data)
        keyed = site.ada.post(path_to(collection, topic), data=data, key=f"malformed-{name}")

    assert (plain.status, plain.problem) == (keyed.status, keyed.problem) == (400, "badRequest"), plain


@pytest.mark.parametrize("name", NOT_ACCEPTED)
def test_an_invalid_request_is_refused_with_its_reason(site: Site, topic: str, name: str) -> None:
    collection, content, status = NOT_ACCEPTED[name]
    with nothing_written(site):
        plain = site.ada.post(path_to(collection, topic), content)
        keyed = site.ada.post(path_to(collection, topic), content, key=f"refused-{name}")

    expected = (status, "badRequest" if status == 400 else "payloadTooLarge")
    assert (plain.status, plain.problem) == (keyed.status, keyed.problem) == expected, plain
    if status == 400:
        assert plain.json["errors"], "it says which field"


def test_a_request_at_the_limits_is_accepted(site: Site) -> None:
    topic = site.ada.topic("é" * 256)
    limit = "https://a.example/".ljust(2048, "x")
    just_fits = [
        ("messages", {"sender": "é" * 127 + "x", "content": "é" * 32_768}),
        ("attachments", {"kind": "k" * 64, "key": "é" * 256, "dedupe_key": "é" * 256, "value_json": {}}),
        ("attachments", {"kind": "k", "value_json": {"a": "x" * (16 * 1024 - 8)}}),
        ("attachments", {"kind": "k", "value_json": {"a": 2**53 - 1, "b": -(2**53) + 1}}),
        ("attachments", {"kind": "k", "value_json": {"a": 2**53}, "dedupe_key": "large"}),
        ("attachments", {"kind": "URL", "value_json": {"url": limit, "title": "ä", "description": None}}),
    ]
    answers = [site.ada.post(path_to(collection, topic), content) for collection, content in just_fits]
    levels = site.ada.post(path_to("attachments", topic), data=deep(62))

    assert [answer.status for answer in (*answers, levels)] == [201] * 7, answers


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": None},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/jsonp"},
        {"Content-Encoding": "gzip"},
    ],
    ids=lambda headers: "-".join(f"{value}" for value in headers.values()).replace("/", "-"),
)
def test_another_media_type_is_refused(site: Site, headers: dict[str, str | None]) -> None:
    with nothing_written(site):
        answer = site.ada.post(TOPICS, {"title": "a"}, headers=headers)

    assert (answer.status, answer.problem) == (415, "unsupportedMediaType")


def test_unknown_paths_are_not_found(site: Site, topic: str) -> None:
    foreign = site.ada.post(f"{TOPICS}/{site.ada.topic()}/messages", {"sender": "a", "content": "b"}).json["message"]
    thing = {"kind": "k", "value_json": {}, "dedupe_key": "nowhere"}
    with nothing_written(site):
        answers = [
            site.ada.post(f"{TOPICS}/top_none/messages", {"sender": "a", "content": "b"}),
            site.ada.post(f"{TOPICS}/top_none/attachments", thing),
            site.ada("PUT", f"{TOPICS}/top_none/attachments", thing),
            site.ada("PUT", f"{TOPICS}/{topic}/attachments", thing),
            site.ada.get(f"{TOPICS}/top_none"),
            site.ada.get(f"{TOPICS}/top_none/messages"),
            site.ada.get(f"{TOPICS}/{'x' * 255}"),
            site.ada.get("/api/v1/nothing"),
            site.ada.post("/api/v1/nothing", {}),
        ]
        unnamed = site.ada("PUT", f"{TOPICS}/{topic}/attachments", {"kind": "k", "value_json": {}})
        elsewhere = site.ada.post(f"{TOPICS}/{topic}/attachments", {**thing, "source_message_id": foreign["id"]})
        methods = [site.ada("DELETE", TOPICS), site.ada("PUT", TOPICS, {"title": "a"}), site.ada("PATCH", TOPICS, {})]

    assert [(answer.status, answer.problem) for answer in answers] == [(404, "notFound")] * 9
    assert (unnamed.status, unnamed.json["errors"][0]["field"]) == (400, "dedupe_key")
    assert (elsewhere.status, elsewhere.json["errors"][0]["field"]) == (400, "source_message_id")
    assert [(answer.status, answer.problem) for answer in methods] == [(405, "methodNotAllowed")] * 3


@pytest.mark.parametrize(
    "query",
    [
        "topics?limit=0", "topics?limit=501", "topics?limit=x", "topics?limit=1.5", "topics?limit=", "topics?limit=%00",
        "topics/%00", "topics/a%00/messages", "topics/%00/attachments", "topics/a/attachments?kind=%00",
        "topics/a/attachments?key=a%00", "topics/a/attachments?dedupe_key=%00%0a", f"topics/{'x' * 256}",
        "events?after=-1", "events?after=x", "events?after=99999999", "events?after=9999999999999999999999",
        "events?limit=0", "events?limit=501", "events?topic_id=", "events?topic_id=%00", "events/stream?after=99999999",
        "events/stream?after=-1", "events/stream?topic_id=%ff%00",
    ],
    ids=lambda query: query.replace("/", "-"),
)  # fmt: skip
def test_an_invalid_query_is_refused(site: Site, query: str) -> None:
    answer = site.ada.get(f"/api/v1/{query}")

    assert (answer.status, answer.problem) == (400, "badRequest"), answer
    assert answer.json.get("errors") or "NUL" in answer.json["detail"], answer


# Too much.


def raw(site: Site, head: list[str], pieces: list[bytes]) -> HubResponse:
    """Send raw bytes, and return the response of the hub."""
    lines = [f"POST {TOPICS} HTTP/1.1", f"Host: 127.0.0.1:{site.port}", f"Authorization: Bearer {site.token}"]
    sent = "\r\n".join([*lines, "Content-Type: application/json", *head, "", ""]).encode()
    with closing(socket.create_connection(("127.0.0.1", site.port), SECONDS_MAX)) as connection:
        connection.sendall(sent)
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                break
        reader = connection.makefile("rb")
        status = int(reader.readline().split()[1])
        headers = dict(line.decode().rstrip().lower().split(": ", 1) for line in iter(reader.readline, b"\r\n"))
        return HubResponse(status, headers, reader.read(int(headers["content-length"])))


@pytest.mark.parametrize("key", [[], ["Idempotency-Key: large"]], ids=["plain", "keyed"])
def test_a_body_over_the_limit_is_refused_with_and_without_a_content_length(site: Site, key: list[str]) -> None:
    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with nothing_written(site):
        announced = raw(site, [*key, f"Content-Length: {BODY_BYTES_MAX + 1}"], [])
        streamed = raw(site, [*key, "Transfer-Encoding: chunked"], [chunk] * 20)

    assert (announced.status, announced.problem) == (413, "payloadTooLarge")
    assert (streamed.status, streamed.problem) == (413, "payloadTooLarge")


def test_a_body_at_the_limit_is_read(site: Site) -> None:
    title = json.dumps({"title": "large"}).encode()

    assert site.ada.post(TOPICS, data=title.ljust(BODY_BYTES_MAX)).status == 201
    with nothing_written(site):
        assert site.ada.post(TOPICS, data=title.ljust(BODY_BYTES_MAX + 1)).status == 413


# Keys.


@pytest.mark.parametrize(
    "key", ["k" * 256, "a b", "", '"a', "ä"], ids=["long", "blank", "empty", "half-quoted", "latin"]
)
def test_a_malformed_key_is_refused(site: Site, key: str) -> None:
    with nothing_written(site):
        answer = site.ada.post(TOPICS, {"title": "a"}, key=key)

    assert (answer.status, answer.problem) == (400, "badRequest")


def test_a_key_stands_for_one_request(site: Site, topic: str) -> None:
    first = site.ada.post(TOPICS, {"title": "one"}, key="one-request")
    with nothing_written(site):
        again = site.ada.post(TOPICS, {"title": "one"}, key="one-request")
        other = site.ada.post(TOPICS, {"title": "two"}, key="one-request")
        elsewhere = site.ada.post(f"{TOPICS}/{topic}/messages", {"sender": "a", "content": "b"}, key="one-request")
        two = site.ada.post(TOPICS, {"title": "one"}, key="one", headers={"X-Idempotency-Key": "two"})

    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert [(one.status, one.problem) for one in (other, elsewhere)] == [(422, "unprocessable")] * 2
    assert (two.status, two.problem) == (400, "badRequest")


def test_two_users_of_the_same_key_do_not_see_each_others_responses(site: Site) -> None:
    key = "the-same-key"
    adas = site.ada.post(TOPICS, {"title": "ada's"}, key=key)
    bobs = site.bob.post(TOPICS, {"title": "bob's"}, key=key)
    # A second token of the same name is the same principal: that is how tokens are replaced.
    rotated: Caller = site.caller("ada", "read", "write")

    assert (adas.status, bobs.status, bobs.replayed) == (201, 201, False)
    assert adas.json["topic"]["id"] != bobs.json["topic"]["id"]
    assert site.bob.post(TOPICS, {"title": "bob's"}, key=key).body == bobs.body
    assert rotated.post(TOPICS, {"title": "ada's"}, key=key).body == adas.body
    with nothing_written(site):
        assert site.bob.post(TOPICS, {"title": "ada's"}, key=key).status == 422
