"""The page of the API reference as text: nothing from a document can run, and every example is valid."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from tests.hub.console.conftest import client, config  # noqa: F401  # fixtures
from tests.hub.in_process_hub import Client

from onceward.hub.reference.markdown import block, line
from onceward.hub.reference.operations import operations_of
from onceward.hub.reference.page import ReferencePage, render
from onceward.hub.reference.schemas import Schemas

HOSTILE = (
    "\"'><script>alert(1)</script><img src=x onerror=alert(1)> [a](javascript:alert(1)) ![b](//evil/x.png) </template>"
)
PLAIN_TAGS = re.compile(r"<(?:script|img|iframe|svg|object|embed)\b[^>]*>", re.IGNORECASE)


def test_hostile_text_anywhere_in_a_document_cannot_run_or_load_anything() -> None:
    schema = {
        "type": "object",
        "description": HOSTILE,
        "properties": {HOSTILE: {"type": "string", "enum": [HOSTILE], "description": HOSTILE, "default": HOSTILE}},
    }
    operation = {
        "summary": HOSTILE, "description": HOSTILE, "tags": [HOSTILE], "security": [{HOSTILE: [HOSTILE]}],
        "parameters": [{"name": HOSTILE, "in": "query", "description": HOSTILE, "schema": schema, "example": HOSTILE}],
        "requestBody": {"description": HOSTILE, "content": {HOSTILE: {"schema": schema, "example": HOSTILE}}},
        "responses": {
            HOSTILE: {
                "description": HOSTILE, "headers": {HOSTILE: {"description": HOSTILE}},
                "content": {"application/json": {"schema": schema}, "application/problem+json": {"examples": {HOSTILE: {}}}},
            }
        },
    }  # fmt: skip
    info = {"title": HOSTILE, "version": HOSTILE, "description": HOSTILE}
    page = render({"info": info, "paths": {f"/{HOSTILE}": {"post": operation}}})
    plain = render({"info": {}, "paths": {"/x": {"post": {"tags": ["x"], "requestBody": operation["requestBody"]}}}})

    assert len(PLAIN_TAGS.findall(page)) == len(PLAIN_TAGS.findall(render({"info": {}, "paths": {}})))
    assert page.count("</template>") == plain.count("</template>") == 1
    assert not re.search(r"""(?:href=["']?javascript|src=["']?(?:[a-z]+:)?//)""", page)
    assert not re.search(r"<[^>]*\son[a-z]+=", re.sub(r'"[^"]*"', "", page))
    assert page.count("&lt;script&gt;") > 10


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Send `key` **once**.", "<p>Send <code>key</code> <strong>once</strong>.</p>\n"),
        ("a\n\nb", "<p>a</p>\n<p>b</p>\n"),
        ("[x](/docs)", '<p><a href="/docs" rel="noreferrer noopener">x</a></p>\n'),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>\n"),
        ("<b>x</b>", "<p>&lt;b&gt;x&lt;/b&gt;</p>\n"),
        (None, ""),
    ],
)
def test_markdown_becomes_safe_html(text: str | None, html: str) -> None:
    assert block(text) == html


def test_a_line_of_markdown_has_no_paragraph() -> None:
    assert line("At most `5`") == "At most <code>5</code>"


SCHEMAS = Schemas(
    {
        "Tree": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "child": {"$ref": "#/components/schemas/Tree"}},
        }
    }
)


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"type": "string", "minLength": 10}, "string----"),
        ({"type": "string", "maxLength": 3}, "str"),
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": "integer", "maximum": -2}, -2),
        ({"type": ["string", "null"]}, "string"),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": "x"}, "x"),
        ({"type": "array", "items": {"type": "integer"}}, [1]),
        ({"type": "object", "properties": {"a": {"default": 5}}}, {"a": 5}),
        ({"type": "integer", "examples": [3]}, 3),
        ({"$ref": "#/components/schemas/None"}, "string"),
    ],
)
def test_an_example_has_the_type_of_its_schema(schema: dict[str, Any], example: Any) -> None:
    assert SCHEMAS.example_of(schema) == example
    assert Draft202012Validator({**schema, "components": {"schemas": {"None": {}}}}).is_valid(example)


def test_a_schema_that_contains_itself_is_shown_once() -> None:
    tree = {"$ref": "#/components/schemas/Tree"}

    assert [field.name for field in SCHEMAS.fields_of(tree)] == ["name", "child"]
    assert SCHEMAS.example_of(tree)["child"]["name"] == "string"


def test_the_body_that_a_form_starts_with_is_valid(client: Client) -> None:  # noqa: F811  # a fixture
    document = client.get("/openapi.json").json()
    wrong, count = [], 0
    for path, item in document["paths"].items():
        for method, operation in item.items():
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                if media_type == "multipart/form-data":
                    continue
                count += 1
                schema = {**content["schema"], "components": document["components"]}
                if "example" not in content or not Draft202012Validator(schema).is_valid(content["example"]):
                    wrong.append((method, path, media_type))

    assert wrong == []
    assert count > 15


def test_every_operation_of_the_document_is_on_the_page_with_a_command(client: Client) -> None:  # noqa: F811  # a fixture
    document, page = client.get("/openapi.json").json(), client.get("/docs").text
    operations = list(operations_of(document))
    anchors = [one.anchor for one in operations]

    assert len(set(anchors)) == len(anchors) == sum(map(len, document["paths"].values()))
    assert all(f'id="{anchor}"' in page for anchor in anchors)
    for one in operations:
        words = shlex.split(one.curl.replace("\\\n", ""))
        assert words[:3] == ["curl", "-iN" if one.is_stream else "-i", "-X"]
        assert words[4].startswith("$HUB/")
        assert ("Authorization: Bearer $TOKEN" in words) is bool(one.scopes)


def test_the_page_is_rendered_once_and_shows_the_address_of_each_request() -> None:
    page, document = ReferencePage(), {"info": {"title": "T"}, "paths": {}}
    first = page.text(document, "http://a/")
    document["info"] = {"title": "another"}
    second = page.text(document, "http://<b>/")

    assert "HUB=http://a\n" in first
    assert second == first.replace("HUB=http://a\n", "HUB=http://&lt;b&gt;\n")
