"""The operations of an OpenAPI document, prepared for the page."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from onceward.http import problem
from onceward.http.openapi_refusals import KEY_HEADER, PROBLEM_MEDIA_TYPE
from onceward.hub.openapi_examples import JSON
from onceward.hub.reference.markdown import block
from onceward.hub.reference.schemas import Field, Json, Schemas

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_FORM = "multipart/form-data"
_STREAM = "text/event-stream"
_NOT_IN_ANCHORS = re.compile(r"[^a-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    Attributes:
        examples: For each media type but forms, a valid body as text.
        form: The fields of a form; empty for other bodies.
        fields: The fields of the JSON object, for the table.
        required: Whether a body must be sent.
        about: The rendered description.
    """

    examples: dict[str, str]
    form: list[Field]
    fields: list[Field]
    required: bool
    about: Markup


@dataclass(frozen=True, slots=True)
class DocumentedResponse:
    """A response of an operation.

    Attributes:
        status: The status, or `default`.
        about: The rendered description.
        codes: For a problem, its codes.
        headers: Headers with their rendered descriptions.
        media_types: The media types of the body.
        example: A body as text, or an empty text.
        fields: The fields of the JSON object.
    """

    status: str
    about: Markup
    codes: list[str]
    headers: list[tuple[str, Markup]]
    media_types: list[str]
    example: str
    fields: list[Field]

    @property
    def is_good(self) -> bool:
        return self.status[:1] in {"2", "3"}


@dataclass(frozen=True, slots=True)
class DocumentedOperation:
    """A method of a path. `has_key` is whether it takes an idempotency key, `is_stream` whether it sends events."""

    anchor: str
    method: str
    path: str
    summary: str
    about: Markup
    group: str
    scopes: list[str]
    parameters: list[Field]
    body: Body | None
    responses: list[DocumentedResponse]
    has_key: bool
    is_stream: bool

    @property
    def curl(self) -> str:
        """The request as a command. Names in capitals, such as TASK_ID, are for the reader to replace."""
        path = re.sub(r"\{([^}]*)\}", lambda found: found[1].upper(), self.path)
        lines = [f'curl -i{"N" if self.is_stream else ""} -X {self.method} "$HUB"{shlex.quote(path)}']
        if self.scopes:
            lines.append('-H "Authorization: Bearer $TOKEN"')
        if self.has_key:
            lines.append(f'-H "{KEY_HEADER}: $(uuidgen)"')
        if self.body is not None and self.body.form:
            lines += [f"-F {shlex.quote(_form_part(one))}" for one in self.body.form if one.required]
        elif self.body is not None and self.body.examples:
            media_type, example = next(iter(self.body.examples.items()))
            lines += [f"-H {shlex.quote(f'Content-Type: {media_type}')}", f"--data-raw {shlex.quote(example)}"]
        return " \\\n  ".join(lines)


def operations_of(document: Json) -> Iterator[DocumentedOperation]:
    """Return the operations of a document, in its order."""
    components = document.get("components") or {}
    schemas = Schemas(components.get("schemas") or {})
    for path, item in (document.get("paths") or {}).items():
        for method, operation in item.items():
            if method in _METHODS:
                shared = [one for one in item.get("parameters") or () if isinstance(one, Mapping)]
                yield _operation(schemas, method.upper(), path, operation, shared)


def _operation(schemas: Schemas, method: str, path: str, operation: Json, shared: list[Any]) -> DocumentedOperation:
    parameters = [
        schemas.field_of(
            str(one.get("name")),
            {**(one.get("schema") or {}), **{name: one[name] for name in ("example",) if name in one}},
            required=bool(one.get("required")),
            place=str(one.get("in")),
            about=str(one.get("description") or ""),
        )
        for one in (*shared, *(operation.get("parameters") or ()))
        if isinstance(one, Mapping) and "name" in one
    ]
    responses = [_response(schemas, str(status), one) for status, one in (operation.get("responses") or {}).items()]
    scopes = dict.fromkeys(
        str(scope) for one in operation.get("security") or () for several in one.values() for scope in several
    )
    return DocumentedOperation(
        anchor=_NOT_IN_ANCHORS.sub("-", f"{method} {path}".lower()).strip("-"),
        method=method,
        path=path,
        summary=str(operation.get("summary") or ""),
        about=block(operation.get("description")),
        group=str((operation.get("tags") or ["other"])[0]),
        scopes=list(scopes),
        parameters=parameters,
        body=_body(schemas, operation.get("requestBody")),
        responses=sorted(responses, key=lambda one: one.status),
        has_key=any(one.place == "header" and one.name.lower() == KEY_HEADER.lower() for one in parameters),
        is_stream=any(_STREAM in one.media_types for one in responses),
    )


def _body(schemas: Schemas, body: Any) -> Body | None:
    content = body.get("content") if isinstance(body, Mapping) else None
    if not content:
        return None
    examples = {
        media_type: _as_text(_example(schemas, one, media_type))
        for media_type, one in content.items()
        if media_type != _FORM
    }
    form = schemas.fields_of(content[_FORM].get("schema")) if _FORM in content else []
    shown = content.get(JSON) or next(iter(content.values()))
    return Body(
        examples=examples,
        form=form,
        fields=form or schemas.fields_of(shown.get("schema")),
        required=bool(body.get("required")),
        about=block(str(schemas.resolve(shown.get("schema")).get("description") or "")),
    )


def _response(schemas: Schemas, status: str, response: Json) -> DocumentedResponse:
    content = response.get("content") or {}
    is_problem = PROBLEM_MEDIA_TYPE in content
    codes = [problem.code_of(int(status))] if is_problem and status.isdecimal() else []
    codes += list(content[PROBLEM_MEDIA_TYPE].get("examples") or ()) if is_problem else []
    own = content.get(JSON) or {}
    return DocumentedResponse(
        status=status,
        about=block(response.get("description")),
        codes=list(dict.fromkeys(codes)),
        headers=[(name, block(one.get("description"))) for name, one in (response.get("headers") or {}).items()],
        media_types=list(content),
        example=_as_text(_example(schemas, own, JSON)) if own.get("schema") else "",
        fields=schemas.fields_of(own.get("schema")) if own.get("schema") else [],
    )


def _example(schemas: Schemas, content: Json, media_type: str) -> Any:
    """Return the example of a content, or one made from its schema."""
    if "example" in content:
        return content["example"]
    for one in (content.get("examples") or {}).values():
        if isinstance(one, Mapping) and "value" in one:
            return one["value"]
    return schemas.example_of(content.get("schema")) if media_type.endswith("json") else ""


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _form_part(field: Field) -> str:
    return f"{field.name}=@FILE" if field.is_file else f"{field.name}={next(iter(field.choices), 'TEXT')}"
