"""Request bodies of the task routes, with their constraints for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from onceward.hub.tasks.task import ID_PATTERN, SPEC_BYTES_MAX
from onceward.hub.tasks.validation import KINDS, PATH_BYTES_MAX, TITLE_BYTES_MAX
from onceward.hub.web.constraints import (
    EXPIRY,
    LABEL,
    MEDIA_TYPE,
    REPO_PATH,
    WEB_URL,
    exactly_one,
    one_of_words,
    text,
    trimmed,
)
from onceward.hub.web.json_body import StrictBody
from onceward.hub.web_url import LENGTH_MAX as URL_LENGTH_MAX

UPLOAD: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["kind", "content"],
                "properties": {
                    "kind": {"type": "string", **one_of_words(KINDS)},
                    "content": {"type": "string", "contentMediaType": "application/octet-stream"},
                    "title": {"type": "string", **trimmed(TITLE_BYTES_MAX, blank=True)},
                    "expires_at": {"type": "string", "pattern": EXPIRY},
                    "media_type": {"type": "string", "pattern": MEDIA_TYPE},
                    "labels": {"type": "array", "items": {"type": "string", "pattern": LABEL}},
                    "labels[]": {
                        "type": "array",
                        "items": {"type": "string", "pattern": LABEL},
                        "description": "The same as `labels`.",
                    },
                    "meta": {"type": "string", "description": "A JSON object."},
                    "reject_media_type_mismatch": {
                        "type": "string",
                        "enum": ["true", "false"],
                        "description": "Whether content that does not match `media_type` is refused. `false` needs the scope admin.",
                    },
                },
            }
        }
    },
}


class TaskSent(StrictBody):
    id: str | None = Field(
        None, description="Default: a generated id.", json_schema_extra={"pattern": f"^{ID_PATTERN}$"}
    )
    title: str = Field(json_schema_extra=text(TITLE_BYTES_MAX))
    spec_id: str | None = Field(
        None, description="A URL, or a path in the repository.", json_schema_extra=text(SPEC_BYTES_MAX)
    )


Label = Annotated[str, Field(json_schema_extra={"pattern": LABEL})]


class LinkSent(StrictBody):
    model_config = ConfigDict(json_schema_extra=exactly_one("external_url", "repo_path"))

    kind: str = Field(json_schema_extra=one_of_words(KINDS))
    external_url: str | None = Field(None, json_schema_extra={"maxLength": URL_LENGTH_MAX, "pattern": WEB_URL})
    repo_path: str | None = Field(
        None,
        description="A relative path with `/` as separator and without `..`.",
        json_schema_extra={**text(PATH_BYTES_MAX), "pattern": REPO_PATH},
    )
    title: str | None = Field(None, json_schema_extra=trimmed(TITLE_BYTES_MAX, blank=True))
    expires_at: str | None = Field(
        None,
        description="A date, or an RFC 3339 time with a time zone, in the future.",
        json_schema_extra={"pattern": EXPIRY},
    )
    media_type: str | None = Field(None, json_schema_extra={"pattern": MEDIA_TYPE})
    labels: list[Label] | None = Field(None, description="At most 100 different labels.")
    meta: dict[str, Any] | None = Field(None, description="An object of at most 16 KiB.")


class LabelsSent(StrictBody):
    labels: list[Label] = Field(description="At most 100 different labels.")
