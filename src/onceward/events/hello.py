"""What a client may say on the WebSocket, and what it is refused with.

| code | `error.code` | meaning | what to do |
| --- | --- | --- | --- |
| 1012 | `stopping` | the hub stops or restarts | connect again, after the id that the error names |
| 1013 | `unavailable` | the database did not answer the hello | connect again later |
| 4400 | `bad-message` | the hello, or a later message, cannot be understood | correct the client |
| 4401 | `unauthorized` | the client's token was revoked | connect again with one that lives |
| 4408 | `no-hello` | no hello within ten seconds | send it right after connecting |
| 4409 | `future-cursor` | the cursor is beyond the end of the log | the client's cursor is of another log: start anew |
| 4410 | `other-log` | the client's `log_epoch` is not this log's | as before |
| 4413 | `stalled` | nothing could be written for `stall_seconds` | connect again, after the id that the error names |

Each close from our side follows an `error` frame with this code, and a `detail`; where the client can resume, both the
frame (`after_event_id`) and the reason of the close ("resume after 17") say after which id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from onceward.events.log import Extent, Filter

HELLO_BYTES_MAX = 64 * 1024
# A filter is looked up for every event, and sent to the database with every page.
SUBSCRIPTIONS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a session ends: the number of the close, the code for programs, the sentence for people."""

    number: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Hello:
    """What the client asks for. No cursor: from now on."""

    after: int | None
    wanted: Filter
    log_epoch: str | None


@dataclass(frozen=True, slots=True)
class Start:
    """Where a session begins. `missed` is the cursor of a client that asked for events which are no longer kept."""

    after: int
    extent: Extent
    missed: int | None


GONE = Ending(1005, "gone", "the client has closed the connection")
STOPPING = Ending(1012, "stopping", "the hub stops; connect again and resume after this event")
UNAVAILABLE = Ending(1013, "unavailable", "the database does not answer; connect again later")
UNAUTHORIZED = Ending(4401, "unauthorized", "the token no longer opens this stream; connect again with one that does")
NO_HELLO = Ending(4408, "no-hello", "the first message is a hello, within ten seconds")
STALLED = Ending(4413, "stalled", "nothing could be written for too long; connect again and resume after this event")


def bad(detail: str) -> Ending:
    return Ending(4400, "bad-message", detail)


def start(extent: Extent, after: int | None, log_epoch: str | None = None) -> Start | Ending:
    """Where a client begins that asks to follow from there; the decision alone."""
    if log_epoch is not None and log_epoch != extent.log_epoch:
        return Ending(4410, "other-log", "this is another log than the one of that log_epoch; begin anew")
    if after is None:
        return Start(extent.last_event_id, extent, None)
    if after > extent.last_event_id:
        return Ending(4409, "future-cursor", f"the log ends at {extent.last_event_id}; begin anew")
    if after < extent.oldest_event_id - 1:
        return Start(extent.oldest_event_id - 1, extent, after)
    return Start(after, extent, None)


def read_hello(text: str | None) -> Hello | Ending:
    """The hello of a text message (None: it was binary)."""
    said = _object(text)
    if isinstance(said, Ending):
        return said
    if said.get("type") != "hello":
        return bad("the first message is a hello")
    if unknown := sorted(said.keys() - {"type", "after_event_id", "subscriptions", "log_epoch"}):
        return bad(f"a hello has no field {unknown[0]!r}")
    after = said.get("after_event_id")
    if after is not None and (type(after) is not int or after < 0):
        return bad("after_event_id is an integer from 0, or null for events from now on")
    epoch = said.get("log_epoch")
    if epoch is not None and not isinstance(epoch, str):
        return bad("log_epoch is text")
    wanted = _wanted(said.get("subscriptions"))
    if isinstance(wanted, Ending):
        return wanted
    return Hello(after, wanted, epoch)


def read_later(text: str | None) -> bool | Ending:
    """A message after the hello; says whether the client asks for a sign of life."""
    said = _object(text)
    if isinstance(said, Ending):
        return said
    if said.get("type") not in {"ping", "pong"}:
        return bad("after its hello a client sends only ping and pong")
    return said["type"] == "ping"


def _object(text: str | None) -> dict[str, object] | Ending:
    if text is None:
        return bad("a message is text, not binary")
    if len(text) > HELLO_BYTES_MAX or len(text.encode()) > HELLO_BYTES_MAX:
        return bad(f"a message is limited to {HELLO_BYTES_MAX} bytes")
    try:
        said = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return bad(f"a message is a JSON object: {error}"[:200])
    if not isinstance(said, dict):
        return bad("a message is a JSON object")
    return said


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return names


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _wanted(said: object) -> Filter | Ending:
    topics: object
    names: object
    match said:
        case None:
            return Filter()
        case list():
            topics, names = said, []
        case dict():
            if unknown := sorted(said.keys() - {"topics", "names"}):
                return bad(f"subscriptions have no field {unknown[0]!r}")
            topics, names = said.get("topics") or [], said.get("names") or []
        case _:
            return bad("subscriptions are a list of topic ids, or an object with topics and names")
    if not (isinstance(topics, list) and isinstance(names, list)):
        return bad("topics and names are lists")
    if len(topics) + len(names) > SUBSCRIPTIONS_MAX:
        return bad(f"at most {SUBSCRIPTIONS_MAX} topics and names")
    if not all(is_name(one) for one in (*topics, *names)):
        return bad("a topic id or name is text without NUL or lone surrogates, and not empty")
    return Filter(frozenset(topics), frozenset(names))


def is_name(one: object) -> bool:
    """Whether something can be the name of a topic or event at all; a database refuses everything else."""
    if not isinstance(one, str) or not one or "\0" in one:
        return False
    try:
        one.encode()
    except UnicodeEncodeError:
        return False
    return True
