"""Handshake of the WebSocket: the messages that a client may send, and the reasons for which the hub closes.

| code | `error.code` | meaning | what to do |
| --- | --- | --- | --- |
| 1012 | `stopping` | the hub stops or restarts | connect again and resume after the id in the error |
| 1013 | `unavailable` | the database did not respond during the handshake | connect again later |
| 4400 | `bad-message` | the hello, or a later message, is not valid | correct the client |
| 4401 | `unauthorized` | the client's token was revoked | connect again with a valid token |
| 4408 | `no-hello` | no hello within ten seconds | send it right after connecting |
| 4409 | `future-cursor` | the cursor is beyond the end of the log | discard the cursor, which belongs to another log |
| 4410 | `other-log` | the client's `log_epoch` is not this log's | discard the cursor, which belongs to another log |
| 4413 | `stalled` | nothing could be written for `stall_seconds` | connect again and resume after the id in the error |

Before the hub closes, it sends an `error` frame with this code and a `detail`. If the client can resume, both the frame
(`after_event_id`) and the reason of the close ("resume after 17") contain the id to resume after.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from onceward.hub.events.log import Extent, Filter

HANDSHAKE_BYTES_MAX = 64 * 1024
# Limited, because a filter is evaluated for every event, and sent to the database with every page.
SUBSCRIPTIONS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class CloseReason:
    """Reason for the end of a session: the close code, the `code` for programs and the `detail` for people."""

    number: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Handshake:
    """Request of a client. `after` is its cursor; None for new events only."""

    after: int | None
    wanted: Filter
    log_epoch: str | None


@dataclass(frozen=True, slots=True)
class Start:
    """Starting point of a session. `missed` is the client's cursor if events after it were deleted, else None."""

    after: int
    extent: Extent
    missed: int | None


GONE = CloseReason(1005, "gone", "the client has closed the connection")
STOPPING = CloseReason(1012, "stopping", "the hub is stopping; connect again and resume after this event")
UNAVAILABLE = CloseReason(1013, "unavailable", "the database does not respond; connect again later")
UNAUTHORIZED = CloseReason(
    4401, "unauthorized", "the token is no longer valid for this stream; connect again with a valid token"
)
NO_HELLO = CloseReason(4408, "no-hello", "send a hello as the first message, within ten seconds")
STALLED = CloseReason(
    4413, "stalled", "the client read nothing for too long; connect again and resume after this event"
)


def bad(detail: str) -> CloseReason:
    return CloseReason(4400, "bad-message", detail)


def start(extent: Extent, after: int | None, log_epoch: str | None = None) -> Start | CloseReason:
    """Return the starting point of a client with this cursor and epoch, or the reason to refuse it. Pure: no I/O."""
    if log_epoch is not None and log_epoch != extent.log_epoch:
        return CloseReason(4410, "other-log", "this log has another log_epoch; discard the cursor and start again")
    if after is None:
        return Start(extent.last_event_id, extent, None)
    if after > extent.last_event_id:
        return CloseReason(
            4409,
            "future-cursor",
            f"the cursor is beyond the end of the log ({extent.last_event_id}); discard the cursor and start again",
        )
    if after < extent.oldest_event_id - 1:
        return Start(extent.oldest_event_id - 1, extent, after)
    return Start(after, extent, None)


def read_handshake(text: str | None) -> Handshake | CloseReason:
    """Parse the hello of a client. `text` is None if the message was binary."""
    message = _object(text)
    if isinstance(message, CloseReason):
        return message
    if message.get("type") != "hello":
        return bad("the first message must be a hello")
    if unknown := sorted(message.keys() - {"type", "after_event_id", "subscriptions", "log_epoch"}):
        return bad(f"unknown field {unknown[0]!r} in the hello")
    after = message.get("after_event_id")
    if after is not None and (type(after) is not int or after < 0):
        return bad("after_event_id must be an integer of at least 0, or null for new events only")
    epoch = message.get("log_epoch")
    if epoch is not None and not isinstance(epoch, str):
        return bad("log_epoch must be a string")
    wanted = _filter_of(message.get("subscriptions"))
    if isinstance(wanted, CloseReason):
        return wanted
    return Handshake(after, wanted, epoch)


def read_client_message(text: str | None) -> bool | CloseReason:
    """Parse a message after the hello. Return whether the client asks for a ping."""
    message = _object(text)
    if isinstance(message, CloseReason):
        return message
    # Not a set: the type may be any JSON, also a list, which has no hash.
    if message.get("type") not in ("ping", "pong"):
        return bad("after its hello, a client may only send ping and pong")
    return message["type"] == "ping"


def _object(text: str | None) -> dict[str, object] | CloseReason:
    if text is None:
        return bad("a message must be text, not binary")
    if len(text) > HANDSHAKE_BYTES_MAX or len(text.encode()) > HANDSHAKE_BYTES_MAX:
        return bad(f"at most {HANDSHAKE_BYTES_MAX} bytes per message")
    try:
        message = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return bad(f"the message is not valid JSON: {error}"[:200])
    if not isinstance(message, dict):
        return bad("the message must be a JSON object")
    return message


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("an object has the same name twice")
    return names


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not allowed")


def _filter_of(subscriptions: object) -> Filter | CloseReason:
    topics: object
    names: object
    match subscriptions:
        case None:
            return Filter()
        case list():
            topics, names = subscriptions, []
        case dict():
            if unknown := sorted(subscriptions.keys() - {"topics", "names"}):
                return bad(f"unknown field {unknown[0]!r} in subscriptions")
            topics, names = subscriptions.get("topics") or [], subscriptions.get("names") or []
        case _:
            return bad("subscriptions must be a list of topic ids, or an object with topics and names")
    if not (isinstance(topics, list) and isinstance(names, list)):
        return bad("topics and names must be lists")
    if len(topics) + len(names) > SUBSCRIPTIONS_MAX:
        return bad(f"at most {SUBSCRIPTIONS_MAX} topics and names, got {len(topics) + len(names)}")
    if not all(is_name(one) for one in (*topics, *names)):
        return bad("each topic id and name must be a non-empty string without NUL or lone surrogates")
    return Filter(frozenset(topics), frozenset(names))


def is_name(one: object) -> bool:
    """Return whether this can be a topic id or the name of an event. A database would refuse any other value."""
    if not isinstance(one, str) or not one or "\0" in one:
        return False
    try:
        one.encode()
    except UnicodeEncodeError:
        return False
    return True
