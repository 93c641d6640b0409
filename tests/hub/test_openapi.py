"""The OpenAPI document states what the hub enforces, and the hub enforces what the document states.

For every field of every JSON body, values at and around the limits that the schema names are sent. The hub must refuse
what the schema refuses, and must not refuse a value of this field that the schema accepts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema_rs import Draft202012Validator
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config.config import Config, HubSettings, IdempotencySettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate

TOPICS = "/api/v1/topics"
# A minimal valid body for each operation.
VALID: dict[tuple[str, str], dict[str, Any]] = {
    ("post", TOPICS): {"title": "T"},
    ("post", f"{TOPICS}/{{topic_id}}/messages"): {"sender": "ada", "content": "hello"},
    ("post", f"{TOPICS}/{{topic_id}}/attachments"): {"kind": "note", "value_json": {"a": 1}},
    ("put", f"{TOPICS}/{{topic_id}}/attachments"): {"kind": "note", "value_json": {"a": 1}, "dedupe_key": "k"},
    ("post", "/v1/tasks"): {"title": "T"},
    ("post", "/v1/tasks/{task_id}/attachments/link"): {"kind": "spec", "repo_path": "a"},
    ("put", "/v1/attachments/{attachment_id}/labels"): {"labels": ["a"]},
    ("put", "/policies"): {"policy_key": "p", "source": "s", "content_type": "c", "conflict_action": "skip"},
    ("put", "/test-mode"): {"enabled": False},
    ("post", "/chat"): {"message": "hello"},
    ("post", "/chat/stream"): {"message": "hello"},
    ("post", "/api/v1/claims/resolve"): {
        "scope": "call", "key": "k", "version": 1, "verdict": "committed", "reason": "r",
    },
    ("post", "/api/v1/claims/abandon"): {"scope": "call", "key": "k", "version": 1, "reason": "r"},
    ("post", "/api/v1/claims/forget"): {"scope": "call", "key": "k", "version": 1, "reason": "r"},
    ("post", "/v1/admin/gc-blobs"): {},
    ("post", "/v1/admin/fsck"): {},
    ("post", "/db/insert"): {"source": "rss"},
    ("post", "/normalize/telegram"): {"text": "hello", "source": {"chat_id": 1, "message_id": 1, "date": 1700000000}},
    ("post", "/normalize/email"): {"raw_text": "hello", "source": {"message_id": "<a@b>"}},
}  # fmt: skip
IDS = {"task_id": "t1"}
# One value of each type of JSON, and texts that are not quite what they seem.
PLAIN: tuple[Any, ...] = (
    None, True, 0, 1, -1, 1.5, "", " ", "\t", "a", "a b", " a ", "é", "\n", "..", "true", "SPEC", "http://a", "ftp://a",
    [], ["a"], [""], [1], {}, {"a": 1}, {"a": None},
)  # fmt: skip


def test_every_json_body_is_probed(client: Client) -> None:
    document = client.get("/openapi.json").json()
    chat, stream = (document["paths"][path]["post"]["requestBody"] for path in ("/chat", "/chat/stream"))
    bodies = {
        (method, path)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }

    assert bodies == set(VALID)
    assert chat == stream


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("document")
    config = Config(HubSettings(data_dir=str(folder), ledger=f"sqlite:///{folder}/keys.db"))
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    with in_process_hub(config) as client:
        topic = client.post(TOPICS, json={"title": "T"}).json()["topic"]["id"]
        assert client.post("/v1/tasks", json={"id": "t1", "title": "T"}).status_code == 201
        link = client.post("/v1/tasks/t1/attachments/link", json={"kind": "spec", "repo_path": "a"}).json()["id"]
        IDS.update(topic_id=topic, attachment_id=link)
        yield client


def schema_of(document: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    schema = document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
    return {**schema, "components": document["components"]}


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = {**document["components"]["schemas"][name], **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema


def fields_of(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    schema = resolved(document, schema)
    found = dict(schema.get("properties", {}))
    for one in itertools.chain(schema.get("anyOf", ()), schema.get("oneOf", ())):
        for name, field in resolved(document, one).get("properties", {}).items():
            found.setdefault(name, field)
    return found


def limits(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every keyword of a schema that sets a limit, however deep."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in {
                "minLength",
                "maxLength",
                "minimum",
                "maximum",
                "exclusiveMaximum",
                "minItems",
                "maxItems",
                "enum",
                "const",
            }:
                yield name, value
            yield from limits(value)
    elif isinstance(schema, list):
        for one in schema:
            yield from limits(one)


def probes(schema: dict[str, Any]) -> list[Any]:
    """Return values at and around the limits that the schema sets for a field."""
    found: list[Any] = list(PLAIN)
    # Limits that the hub has somewhere, and that this field may have without saying so.
    lengths = {64, 65, 128, 129, 255, 256, 257, 512, 513, 1024, 1025, 2049, 4097}
    for name, value in limits(schema):
        if name in {"minLength", "maxLength"}:
            lengths |= {value, value + 1}
        elif name in {"minimum", "maximum", "exclusiveMaximum"}:
            found += [int(value) - 1, int(value), int(value) + 1]
        elif name in {"minItems", "maxItems"}:
            found += [[str(number) for number in range(value + more)] for more in (0, 1)]
        elif name == "enum":
            found += [*value, *([one] for one in value)]
    found += ["a" * length for length in sorted(lengths)]
    if "array" in str(schema):
        found += [[text] for text in found if isinstance(text, str) and len(text) > 1]
    return found


def send(client: Client, method: str, path: str, sent: Any) -> httpx.Response:
    # A stream that is followed would end with its turn only.
    return client.request(method.upper(), path.format(**IDS), json=sent)


# Too long only together with the namespace of the ledger, which is a setting.
_WITH_NAMESPACE = range(255 - 64 - 1, 256)
# They also take what Telegram and mail programs send, which no schema here describes.
NORMALIZERS = ("/normalize/telegram", "/normalize/email")
# Refusals that depend on stored data or the current time, which no schema can express.
LOOKED_UP = (
    "is not a message of this topic", "must be in the future", "is an unknown policy", "is a disabled policy", " is for source ", "is not the id of",
)  # fmt: skip


def refusals_of(answer: httpx.Response) -> list[str]:
    """Return the errors of the response; empty if it was accepted."""
    assert answer.status_code < 500, answer.text
    body = answer.json()
    if answer.status_code == 200 and "results" in body:
        return [one["error"]["detail"] for one in body["results"] if one["action"] == "failed"]
    if answer.status_code == 400:
        return [error["message"] for error in body["errors"]]
    return [body["detail"]] if answer.status_code == 413 else []


RESOLVE = ("post", "/api/v1/claims/resolve")
ATTACH = ("post", f"{TOPICS}/{{topic_id}}/attachments")
LINK = ("post", "/v1/tasks/{task_id}/attachments/link")
GIVEN = {**VALID[RESOLVE], "scope": "http:anonymous", "response": {"status": 200}}
# The body, and the object in it whose fields are probed.
CASES: dict[str, tuple[tuple[str, str], dict[str, Any], str | None]] = {
    # The stream takes the same body as the chat.
    **{" ".join(one): (one, VALID[one], None) for one in VALID if one[1] != "/chat/stream"},
    "a response": (RESOLVE, GIVEN, "response"),
    "of an HTTP claim": (RESOLVE, GIVEN, None),
    "what did not happen": (RESOLVE, {**VALID[RESOLVE], "verdict": "not_committed"}, None),
    "a link of a topic": (ATTACH, {"kind": "Link", "value_json": {"url": "http://a"}}, "value_json"),
    "a link of a task": (LINK, {"kind": "spec", "external_url": "http://a"}, None),
    "a keyed entry": (
        ("post", "/db/insert"),
        {
            "source": "email", "content_type": "newsletter", "idempotency_policy_key": "email_newsletter_v1",
            "idempotency_key_primary": "k",
        },
        None,
    ),
}  # fmt: skip
# Of an object that is checked only in some cases, and has no schema of its own.
LINK_FIELDS = {name: {"maxLength": 2048} for name in ("url", "title", "description")}


@pytest.mark.parametrize("case", CASES)
def test_the_hub_refuses_exactly_what_the_schema_refuses(client: Client, case: str) -> None:
    (method, path), valid, within = CASES[case]
    document = client.get("/openapi.json").json()
    schema = schema_of(document, method, path)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(valid)
    assert not refusals_of(send(client, method, path, valid))
    fields, inner = fields_of(document, schema), valid
    if within is not None:
        fields = LINK_FIELDS if within == "value_json" else fields_of(document, fields[within]["anyOf"][0])
        inner = valid[within]
    tried: list[dict[str, Any]] = [{**inner, "colour": "red"}]
    tried += [{other: value for other, value in inner.items() if other != name} for name in inner]
    tried += [{**inner, name: probe} for name, field in fields.items() for probe in probes(resolved(document, field))]
    wrong: list[str] = []
    for one in tried:
        if len(str(one.get("scope", ""))) in _WITH_NAMESPACE:
            continue
        sent = one if within is None else {**valid, within: one}
        answer = send(client, method, path, sent)
        refusals, stated = refusals_of(answer), validator.is_valid(sent)
        explained = path in NORMALIZERS or any(part in refusal for refusal in refusals for part in LOOKED_UP)
        if bool(refusals) is stated and not (stated and explained):
            shown = {name: value for name, value in one.items() if value != inner.get(name)} or one
            wrong.append(
                f"{str(shown)[:120]}: the hub says {answer.status_code} {answer.text[:200]}, the schema {stated}"
            )

    assert not wrong, "\n".join(wrong)


def test_deleting_needs_a_confirmation_that_the_document_shows(client: Client) -> None:
    collect = client.get("/openapi.json").json()["paths"]["/v1/admin/gc-blobs"]["post"]
    (confirm,) = [one for one in collect["parameters"] if one["name"] == "X-Confirm"]
    answers = {
        value: client.post("/v1/admin/gc-blobs", json={"dry_run": False}, headers={"X-Confirm": value} if value else {})
        for value in ("", "false", "TRUE", "true")
    }

    assert "true" in str(confirm["schema"])
    assert (confirm["in"], confirm["required"]) == ("header", False)
    assert {value: answer.status_code for value, answer in answers.items()} == {
        "": 400,
        "false": 400,
        "TRUE": 400,
        "true": 200,
    }
    assert [error["field"] for error in answers[""].json()["errors"]] == ["X-Confirm"]
    assert client.post("/v1/admin/gc-blobs", headers={"X-Confirm": "no"}).status_code == 400


def test_every_operation_declares_the_problems_it_responds_with(client: Client) -> None:
    document = client.get("/openapi.json").json()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            shown = operation["responses"]
            problems = {code for code, one in shown.items() if "application/problem+json" in one.get("content", {})}
            expected = {"401", "403"} if operation["security"] else set()
            expected |= {"404"} if "{" in path else set()
            expected |= {"400"} if operation.get("parameters") or "requestBody" in operation else set()
            expected |= {"413", "415"} if "requestBody" in operation else set()
            expected |= {"416"} if "206" in shown else set()
            expected |= {"503"} if operation["security"] else set()
            assert expected | {"default"} <= problems, (method, path)


STREAMS = {("get", "/api/v1/events/stream"), ("post", "/chat/stream"), ("get", "/turns/{turn_id}/events")}
QUEUES = {("post", "/chat"), ("post", "/chat/stream")}


def too_many(document: dict[str, Any]) -> set[tuple[str, str]]:
    """The operations that document the status 429."""
    return {
        (method, path)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if "429" in operation["responses"]
    }


def test_the_operations_with_a_limit_and_no_others_declare_429(client: Client) -> None:
    document = client.get("/openapi.json").json()

    assert too_many(document) == STREAMS | QUEUES
    for method, path in STREAMS | QUEUES:
        assert "Retry-After" in document["paths"][path][method]["responses"]["429"]["headers"]
        assert "Retry-After" in document["paths"][path][method]["responses"]["503"]["headers"]


def test_the_hub_responds_429_where_the_document_says_so(tmp_path: Path) -> None:
    config = Config(
        HubSettings(data_dir=str(tmp_path), max_streams_per_principal=0),
        IdempotencySettings(max_keys_per_principal=1),
    )
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    with in_process_hub(config) as client:
        document = client.get("/openapi.json").json()
        client.post(TOPICS, json={"title": "T"}, headers={"Idempotency-Key": "first"})
        answers = {
            (method, path): client.request(
                method.upper(), path, json=VALID.get((method, path)), headers={"Idempotency-Key": "k"}
            )
            for path, item in document["paths"].items()
            for method in item
            if (method, path) in STREAMS or (method in {"post", "put", "patch"} and (method, path) not in QUEUES)
        }

    assert {one: answer.status_code for one, answer in answers.items()} == dict.fromkeys(answers, 429)
    assert all(int(answer.headers["retry-after"]) > 0 for answer in answers.values())
    assert too_many(document) == answers.keys() | QUEUES


def test_the_hub_responds_413_415_and_416_where_the_document_says_so(client: Client) -> None:
    too_long = b" " * (16 * 1024 * 1024 + 1)
    document = client.get("/openapi.json").json()
    upload = {"content": ("a.txt", b"a", "text/plain")}
    attachment = client.post("/v1/tasks/t1/attachments", data={"kind": "spec"}, files=upload).json()["id"]
    content = f"/v1/attachments/{attachment}/content"

    for method, path in VALID:
        shown = document["paths"][path][method]["responses"].keys()
        url = path.format(**IDS)
        headers = {"Content-Type": "application/json"}
        large = client.request(method.upper(), url, content=too_long, headers=headers)
        plain = client.request(method.upper(), url, content=b"a", headers={"Content-Type": "text/plain"})
        assert (large.status_code, plain.status_code) == (413, 415), path
        assert {"413", "415"} <= shown
    assert client.get(content, headers={"Range": "bytes=9-"}).status_code == 416
