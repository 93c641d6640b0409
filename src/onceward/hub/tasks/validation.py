"""Validation of the fields and labels of an attachment. Pure: nothing is read or written."""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import field

from onceward.core.canonical import Json
from onceward.core.json_text import CONTROL, bytes_of, checked, compact, depth, has_nul, refused
from onceward.core.record import record
from onceward.errors import InvalidInput, TooLarge
from onceward.hub.db.timestamps import time_text
from onceward.hub.web_url import LENGTH_MAX as URL_LENGTH_MAX
from onceward.hub.web_url import is_web_url

LENGTH_MAX = 64
COUNT_MAX = 100


def normal_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels trimmed, in NFC and lower case, without duplicates, sorted; `InvalidInput` for invalid ones."""
    found = {_normal(label) for label in labels}
    if len(found) > COUNT_MAX:
        raise refused("labels", f"must be at most {COUNT_MAX}, got {len(found)}")
    return tuple(sorted(found))


def _normal(label: str) -> str:
    # Lower-casing may denormalize the text, so it is normalized again afterwards.
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", label).strip().lower())
    if not text:
        raise refused("labels", "must not be blank")
    if len(text) > LENGTH_MAX:
        raise refused("labels", f"must be at most {LENGTH_MAX} characters long each, got {len(text)}")
    # Z: white space of every kind. C: control characters, surrogates, and invisible characters.
    if any(unicodedata.category(character)[0] in "ZC" for character in text):
        raise refused("labels", "must not contain white space or control characters")
    return text


KINDS = ("spec", "diagram", "artifact", "diagnostic", "archive", "other")
TITLE_BYTES_MAX = 512
FILENAME_BYTES_MAX = 255
META_BYTES_MAX = 16 * 1024
# The same limit as for request bodies.
NESTING_MAX = 64
PATH_BYTES_MAX = 1024

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
# RFC 3339: a date, a time and a UTC offset, all required.
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Set by the hub after inspecting the bytes; values that a client sends under these names are ignored.
_OWN_META = frozenset({"sniffed_media_type", "archive"})


@record(frozen=True, slots=True)
class NewTaskAttachment:
    """Fields that a client gives for a new attachment, an upload or a link."""

    kind: str
    title: str | None = None
    filename: str | None = None
    media_type: str | None = None
    expires_at: str | None = None
    labels: tuple[str, ...] = ()
    meta: dict[str, Json] = field(default_factory=dict)


def normal_kind(kind: str) -> str:
    text = kind.strip().lower()
    if text not in KINDS:
        raise refused("kind", f"must be one of {', '.join(KINDS)}")
    return text


def normal_title(title: str | None) -> str | None:
    """Return the trimmed title; None if it is absent or blank."""
    if title is None or not title.strip():
        return None
    return checked("title", title.strip(), TITLE_BYTES_MAX)


def normal_filename(filename: str | None) -> str | None:
    """Return the last part of the name: folders on the client's machine mean nothing here."""
    if filename is None:
        return None
    name = CONTROL.sub("", re.split(r"[/\\]", filename)[-1]).strip()
    if name in {"", ".", ".."}:
        return None
    return checked("filename", name, FILENAME_BYTES_MAX)


def meta_text(meta: dict[str, Json]) -> str | None:
    """Return the stored JSON text; None for an empty object."""
    if not isinstance(meta, dict):
        raise refused("meta", "must be an object")
    if not meta:
        return None
    text = compact(meta)
    if text.count("{") + text.count("[") > NESTING_MAX and depth(meta) > NESTING_MAX:
        raise refused("meta", f"is nested deeper than {NESTING_MAX} levels")
    if bytes_of("meta", text) > META_BYTES_MAX:
        raise TooLarge(f"meta is limited to {META_BYTES_MAX} bytes of compact JSON")
    if has_nul(meta):
        raise refused("meta", "must not contain a NUL character")
    return text


def client_meta(meta: dict[str, Json]) -> dict[str, Json]:
    """Return the metadata without the fields that only the hub sets."""
    return {name: value for name, value in meta.items() if name not in _OWN_META}


def expiry(text: str | None, now: datetime.datetime) -> str | None:
    """Parse an expiry: an RFC 3339 time with its UTC offset, or a date, which means the end of that day in UTC."""
    if text is None or not text.strip():
        return None
    text = text.strip()
    try:
        if _DATE.fullmatch(text):
            end = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
            end += datetime.timedelta(days=1, microseconds=-1)
        elif _MOMENT.fullmatch(text):
            end = datetime.datetime.fromisoformat(text.upper()).astimezone(datetime.UTC)
        else:
            raise refused("expires_at", "must be a date, or a time with a time zone such as 2026-12-31T12:00:00Z")
    except (ValueError, OverflowError):
        raise refused("expires_at", "is not a valid date or time") from None
    if end <= now:
        raise past()
    return time_text(end)


def past() -> InvalidInput:
    return refused("expires_at", "must be in the future")


def web_url(url: str) -> str:
    if len(url) > URL_LENGTH_MAX:
        raise refused("external_url", f"must be at most {URL_LENGTH_MAX} characters, got {len(url)}")
    if not is_web_url(url):
        raise refused("external_url", "must be an http or https URL")
    bytes_of("external_url", url)
    return url


def repo_path(path: str) -> str:
    """Return the path if it is relative and stays inside the repository."""
    checked("repo_path", path, PATH_BYTES_MAX)
    if CONTROL.search(path):
        raise refused("repo_path", "must not contain control characters")
    if path.startswith("/") or "\\" in path or _DRIVE.match(path):
        raise refused("repo_path", "must be relative, with / between its parts and without a drive letter")
    if _SCHEME.match(path):
        raise refused("repo_path", "must be a path in a repository, not a URL")
    if ".." in path.split("/"):
        raise refused("repo_path", "must not have .. as one of its parts")
    return path
