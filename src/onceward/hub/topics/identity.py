"""Identity and validation of attachments. Pure: no I/O."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import cast

from onceward.core.canonical import Json, canonical
from onceward.core.json_text import CONTROL, bytes_of, checked, compact, has_nul, refused
from onceward.errors import InvalidKey, TooLarge
from onceward.hub.web_url import LENGTH_MAX, is_web_url

KIND_BYTES_MAX = 64
KEY_BYTES_MAX = 512
VALUE_BYTES_MAX = 16 * 1024

_LINKS = frozenset({"url", "link"})


@dataclass(frozen=True, slots=True)
class NewAttachment:
    """An attachment to add. Without a `dedupe_key`, its identity is made from the value."""

    kind: str
    value_json: dict[str, Json]
    key: str | None = None
    dedupe_key: str | None = None
    source_message_id: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The columns of the unique index. A missing key and an empty key are the same."""

    topic_id: str
    kind: str
    key: str
    dedupe_key: str

    @classmethod
    def of(cls, topic_id: str, new: NewAttachment) -> Identity:
        """Validate an attachment and return its identity. Raises `InvalidInput` or `TooLarge`."""
        checked("kind", new.kind, KIND_BYTES_MAX)
        if new.key:
            checked("key", new.key, KEY_BYTES_MAX)
        if new.source_message_id is not None:
            checked("source_message_id", new.source_message_id, KEY_BYTES_MAX)
        _check_value(new)
        if new.dedupe_key is None:
            dedupe_key = value_key(new.value_json)
        else:
            dedupe_key = checked("dedupe_key", new.dedupe_key, KEY_BYTES_MAX)
        return cls(topic_id, new.kind, new.key or "", dedupe_key)

    def columns(self) -> dict[str, str]:
        return {"topic_id": self.topic_id, "kind": self.kind, "key": self.key, "dedupe_key": self.dedupe_key}


def value_key(value: dict[str, Json]) -> str:
    """Return the dedupe key of a value: its canonical JSON, or the digest of that if it is long."""
    try:
        content = canonical(value)
    except InvalidKey as error:
        why = f"has no canonical form ({error}); send a dedupe_key"
        raise refused("value_json", why) from error
    if len(content) <= KEY_BYTES_MAX:
        return content.decode()
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _check_value(new: NewAttachment) -> None:
    if not isinstance(cast("object", new.value_json), dict):
        raise refused("value_json", "must be an object")
    text = compact(cast("Json", new.value_json))
    size = bytes_of("value_json", text)
    if size > VALUE_BYTES_MAX:
        raise TooLarge(f"value_json must have at most {VALUE_BYTES_MAX} bytes of compact JSON, got {size}")
    if "\\u0000" in text and has_nul(cast("Json", new.value_json)):
        raise refused("value_json", "must not contain a NUL character")
    if new.kind.lower() in _LINKS:
        _check_link(new.value_json)


def _check_link(value: dict[str, Json]) -> None:
    url = value.get("url")
    if not isinstance(url, str):
        raise refused("value_json.url", "must be a string: the http or https URL of the link")
    if len(url) > LENGTH_MAX:
        raise refused("value_json.url", f"must have at most {LENGTH_MAX} characters, got {len(url)}")
    if not is_web_url(url):
        raise refused("value_json.url", "must be an http or https URL")
    for name in ("title", "description"):
        text = value.get(name)
        if text is None:
            continue
        if not isinstance(text, str):
            raise refused(f"value_json.{name}", "must be a string")
        if CONTROL.search(text):
            raise refused(f"value_json.{name}", "must not contain control characters")
