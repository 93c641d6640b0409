"""Reading what the hub answers: values from JSON, and from problem answers the exceptions they stand for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx

from onceward import errors
from onceward.http.retry import asked_seconds
from onceward.hub.client.values import (
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

# What is quoted of an answer that nobody expected.
_QUOTED_CHARACTERS_MAX = 200


def read(response: httpx.Response, made: Callable[[Any], T]) -> T:
    """The value in a whole answer; raises what a problem answer stands for."""
    if not response.is_success:
        raise error_of(response)
    try:
        return made(response.json())
    except (KeyError, TypeError, ValueError) as error:
        raise unexpected(response) from error


def error_of(response: httpx.Response) -> errors.OncewardError:
    """The exception that a whole answer stands for."""
    problem = _problem(response)
    detail = str(problem.get("detail") or f"the hub answered {response.status_code} {response.reason_phrase}")
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
    said = response.text[:_QUOTED_CHARACTERS_MAX]
    return errors.UnexpectedAnswer(
        f"{response.request.method} {response.request.url.path} was answered with {response.status_code}, {said!r}",
        response.status_code,
    )


def key_of(request: httpx.Request) -> str:
    """The idempotency key that a request carries; empty without one."""
    return str(request.headers.get("Idempotency-Key", ""))


def _problem(response: httpx.Response) -> dict[str, Any]:
    """The problem that an answer is; empty when it is none."""
    if response.headers.get("Content-Type", "").partition(";")[0].strip() != "application/problem+json":
        return {}
    try:
        said = response.json()
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _fields(said: Any) -> tuple[tuple[str, str], ...]:
    found = said if isinstance(said, list) else []
    return tuple((str(one.get("field")), str(one.get("message"))) for one in found if isinstance(one, dict))


def _retry_after(response: httpx.Response) -> float:
    headers = response.headers
    return asked_seconds(headers.get("Retry-After"), headers.get("Date"), datetime.now(UTC)) or 1.0


# Values. What a later version of the hub says besides is passed over.


def page(said: Any, field: str, made: Callable[[Any], T]) -> tuple[list[T], str | None]:
    """The items of a page, and the cursor of the next one, None after the last."""
    return [made(one) for one in said[field]], said["next_after"] if said["has_more"] else None


def topic(said: Any) -> Topic:
    return Topic(said["id"], said["title"], _moment(said["created_at"]))


def topic_found(said: Any) -> Topic:
    return topic(said["topic"])


def topic_made(said: Any) -> TopicMade:
    return TopicMade(topic(said["topic"]), said["event_id"])


def message(said: Any) -> Message:
    return Message(said["id"], said["topic_id"], said["sender"], said["content"], _moment(said["created_at"]))


def message_made(said: Any) -> MessageMade:
    return MessageMade(message(said["message"]), said["event_id"])


def attachment(said: Any) -> Attachment:
    return Attachment(
        said["id"],
        said["topic_id"],
        said["kind"],
        said["key"],
        said["value_json"],
        said["dedupe_key"],
        said["source_message_id"],
        _moment(said["created_at"]),
    )


def attached(said: Any) -> Attached:
    return Attached(attachment(said["attachment"]), said["event_id"], bool(said.get("value_differs")))


def event(said: Any) -> Event:
    return Event(
        said["event_id"],
        said["name"],
        said["topic_id"],
        said["entity_type"],
        said["entity_id"],
        said["data"],
        _moment(said["created_at"]),
    )


def event_page(said: Any) -> EventPage:
    gap = said.get("gap")
    return EventPage(
        tuple(event(one) for one in said["events"]),
        said["next_after"],
        said["has_more"],
        None if gap is None else Gap(gap["after_event_id"], gap["oldest_event_id"]),
    )


def readiness(said: Any) -> Readiness:
    return Readiness(said["status"] == "ok", dict(said["checks"]))


def nothing(said: Any) -> None:
    """That it was done is all there is to know."""
    said["id"]


def task(said: Any) -> Task:
    moments = _moment(said["created_at"]), _moment(said["updated_at"])
    return Task(said["id"], said["title"], said.get("spec_id"), *moments)


def task_attachment(said: Any) -> TaskAttachment:
    expires_at = said.get("expires_at")
    return TaskAttachment(
        id=said["id"],
        task_id=said["task_id"],
        kind=said["kind"],
        source_type=said["source_type"],
        title=said.get("title"),
        filename=said.get("filename"),
        media_type=said.get("media_type"),
        media_type_source=said["media_type_source"],
        blob_id=said.get("blob_id"),
        external_url=said.get("external_url"),
        repo_path=said.get("repo_path"),
        sha256=said.get("sha256"),
        size_bytes=said.get("size_bytes"),
        meta=said.get("meta", {}),
        labels=tuple(said["labels"]),
        created_at=_moment(said["created_at"]),
        updated_at=_moment(said["updated_at"]),
        expires_at=None if expires_at is None else _moment(expires_at),
        expired=said.get("expired", False),
    )


def collected(said: Any) -> Collected:
    return Collected(**{name: said[name] for name in Collected.__slots__})


def damage_list(said: Any) -> list[Damage]:
    found = [{name: one[name] for name in Damage.__slots__} for one in said["damaged"]]
    return [Damage(**{**one, "attachments": tuple(one["attachments"])}) for one in found]


def backfilled(said: Any) -> Backfilled:
    failed = tuple((task_id, reason) for task_id, reason in said["failed"])
    return Backfilled(said["task_count"], said["added_count"], said["skipped_count"], failed)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
