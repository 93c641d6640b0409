"""Decoding of the hub's responses: JSON into values, and problems into exceptions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx

from onceward import errors
from onceward.http.client.policy import retry_after_seconds
from onceward.hub.client.types import (
    Attached,
    Attachment,
    Backfilled,
    Collected,
    Damage,
    Event,
    EventPage,
    Gap,
    Message,
    MessageMade,
    Readiness,
    Task,
    TaskAttachment,
    Topic,
    TopicMade,
)

T = TypeVar("T")

# Characters of an unexpected response that are quoted in the error.
_QUOTED_CHARACTERS_MAX = 200


def read(response: httpx.Response, decode: Callable[[Any], T]) -> T:
    """Decode the value in a complete response, or raise the exception of a problem."""
    if not response.is_success:
        raise error_of(response)
    try:
        return decode(response.json())
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise unexpected(response) from error


def error_of(response: httpx.Response) -> errors.OncewardError:
    """Return the exception for a complete response that is not a success."""
    problem = _problem(response)
    detail = str(problem.get("detail") or f"the hub responded with {response.status_code} {response.reason_phrase}")
    code = problem.get("code")
    match response.status_code:
        case 400:
            return errors.InvalidInput(detail, _fields(problem.get("errors")))
        case 401:
            return errors.Unauthorized(detail)
        case 403:
            return errors.Forbidden(detail)
        case 404 if code == errors.Expired.code:
            return errors.Expired(detail)
        case 404 if problem:
            return errors.NotFound(detail)
        case 409 if code == "in-doubt":
            return errors.InDoubt(detail)
        case 409 if code == errors.Expired.code:
            return errors.Expired(detail)
        case 409 if code == "outcome-not-kept":
            return errors.OutcomeNotKept(detail)
        case 409 if problem and "Retry-After" not in response.headers:
            return errors.AlreadyThere(detail)
        case 409 | 429:
            return errors.Busy(detail, _retry_after(response))
        case 413:
            return errors.TooLarge(detail)
        case 422:
            return errors.KeyReused(detail)
        case 502 | 503 | 504:
            return errors.HubUnavailable(detail, key_of(response.request))
        case _:
            return unexpected(response)


def unexpected(response: httpx.Response) -> errors.UnexpectedAnswer:
    quoted = response.text[:_QUOTED_CHARACTERS_MAX]
    return errors.UnexpectedAnswer(
        f"unexpected response to {response.request.method} {response.request.url.path}: {response.status_code},"
        f" {quoted!r}",
        response.status_code,
    )


def key_of(request: httpx.Request) -> str:
    """Return the idempotency key of a request, or an empty text if it has none."""
    return str(request.headers.get("Idempotency-Key", ""))


def _problem(response: httpx.Response) -> dict[str, Any]:
    """Return the problem in a response, or an empty object if it is not a problem."""
    if response.headers.get("Content-Type", "").partition(";")[0].strip() != "application/problem+json":
        return {}
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _fields(body: Any) -> tuple[tuple[str, str], ...]:
    found = body if isinstance(body, list) else []
    return tuple((str(one.get("field")), str(one.get("message"))) for one in found if isinstance(one, dict))


def _retry_after(response: httpx.Response) -> float:
    headers = response.headers
    return retry_after_seconds(headers.get("Retry-After"), headers.get("Date"), datetime.now(UTC)) or 1.0


# Values. Fields that a later version of the hub adds are ignored.


def page(body: Any, field: str, decode: Callable[[Any], T]) -> tuple[list[T], str | None]:
    """Return the items of a page, and the cursor of the next page or None."""
    return [decode(one) for one in body[field]], body["next_after"] if body["has_more"] else None


def topic(body: Any) -> Topic:
    return Topic(body["id"], body["title"], _moment(body["created_at"]))


def topic_found(body: Any) -> Topic:
    return topic(body["topic"])


def topic_made(body: Any) -> TopicMade:
    return TopicMade(topic(body["topic"]), body["event_id"])


def message(body: Any) -> Message:
    return Message(body["id"], body["topic_id"], body["sender"], body["content"], _moment(body["created_at"]))


def message_made(body: Any) -> MessageMade:
    return MessageMade(message(body["message"]), body["event_id"])


def attachment(body: Any) -> Attachment:
    return Attachment(
        body["id"],
        body["topic_id"],
        body["kind"],
        body["key"],
        body["value_json"],
        body["dedupe_key"],
        body["source_message_id"],
        _moment(body["created_at"]),
    )


def attached(body: Any) -> Attached:
    return Attached(attachment(body["attachment"]), body["event_id"], bool(body.get("value_differs")))


def event(body: Any) -> Event:
    return Event(
        body["event_id"],
        body["name"],
        body["topic_id"],
        body["entity_type"],
        body["entity_id"],
        body["data"],
        _moment(body["created_at"]),
    )


def event_page(body: Any) -> EventPage:
    gap = body.get("gap")
    return EventPage(
        tuple(event(one) for one in body["events"]),
        body["next_after"],
        body["has_more"],
        None if gap is None else Gap(gap["after_event_id"], gap["oldest_event_id"]),
    )


def readiness(body: Any) -> Readiness:
    return Readiness(body["status"] == "ok", dict(body["checks"]))


def nothing(body: Any) -> None:
    """Check that the response names the resource. It has no other content of interest."""
    body["id"]


def task(body: Any) -> Task:
    moments = _moment(body["created_at"]), _moment(body["updated_at"])
    return Task(body["id"], body["title"], body.get("spec_id"), *moments)


def task_attachment(body: Any) -> TaskAttachment:
    expires_at = body.get("expires_at")
    return TaskAttachment(
        id=body["id"],
        task_id=body["task_id"],
        kind=body["kind"],
        source_type=body["source_type"],
        title=body.get("title"),
        filename=body.get("filename"),
        media_type=body.get("media_type"),
        media_type_source=body["media_type_source"],
        blob_id=body.get("blob_id"),
        external_url=body.get("external_url"),
        repo_path=body.get("repo_path"),
        sha256=body.get("sha256"),
        size_bytes=body.get("size_bytes"),
        meta=body.get("meta", {}),
        labels=tuple(body["labels"]),
        created_at=_moment(body["created_at"]),
        updated_at=_moment(body["updated_at"]),
        expires_at=None if expires_at is None else _moment(expires_at),
        expired=body.get("expired", False),
    )


def collected(body: Any) -> Collected:
    return Collected(**{name: body[name] for name in Collected.__slots__})


def damage_list(body: Any) -> list[Damage]:
    found = [{name: one[name] for name in Damage.__slots__} for one in body["damaged"]]
    return [Damage(**{**one, "attachments": tuple(one["attachments"])}) for one in found]


def backfilled(body: Any) -> Backfilled:
    failed = tuple((task_id, reason) for task_id, reason in body["failed"])
    return Backfilled(body["task_count"], body["added_count"], body["skipped_count"], failed)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
