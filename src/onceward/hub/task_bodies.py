"""The bodies of requests about tasks and their attachments, with what the OpenAPI document states of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from onceward.core.web_url import LENGTH_MAX as URL_LENGTH_MAX
from onceward.hub.body import Sent
from onceward.hub.constraints import (
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
from onceward.tasks.fields import KINDS, PATH_BYTES_MAX, TITLE_BYTES_MAX
from onceward.tasks.task import ID_PATTERN, SPEC_BYTES_MAX

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
                        "description": "As `labels`.",
                    },
                    "meta": {"type": "string", "description": "A JSON object."},
                    "reject_media_type_mismatch": {
                        "type": "string",
                        "enum": ["true", "false"],
                        "description": "Whether bytes that are not of the `media_type` are refused. `false` needs the scope admin.",
                    },
                },
            }
        }
    },
}


class TaskSent(Sent):
    id: str | None = Field(
        None, description="Without it, the task gets its own.", json_schema_extra={"pattern": f"^{ID_PATTERN}$"}
    )
    title: str = Field(json_schema_extra=text(TITLE_BYTES_MAX))
    spec_id: str | None = Field(
        None, description="A URL, or a path in the repository.", json_schema_extra=text(SPEC_BYTES_MAX)
    )


Label = Annotated[str, Field(json_schema_extra={"pattern": LABEL})]


class LinkSent(Sent):
    model_config = ConfigDict(json_schema_extra=exactly_one("external_url", "repo_path"))

    kind: str = Field(json_schema_extra=one_of_words(KINDS))
    external_url: str | None = Field(None, json_schema_extra={"maxLength": URL_LENGTH_MAX, "pattern": WEB_URL})
    repo_path: str | None = Field(
        None,
        description="A relative path with / between its parts, without `..`.",
        json_schema_extra={**text(PATH_BYTES_MAX), "pattern": REPO_PATH},
    )
    title: str | None = Field(None, json_schema_extra=trimmed(TITLE_BYTES_MAX, blank=True))
    expires_at: str | None = Field(
        None,
        description="A date, or an RFC 3339 time with its zone, in the future.",
        json_schema_extra={"pattern": EXPIRY},
    )
    media_type: str | None = Field(None, json_schema_extra={"pattern": MEDIA_TYPE})
    labels: list[Label] | None = Field(None, description="At most 100 different ones.")
    meta: dict[str, Any] | None = Field(None, description="An object of at most 16 KiB.")


class LabelsSent(Sent):
    labels: list[Label] = Field(description="At most 100 different ones.")
