"""The sentence about the next retry, for each state of an entry: its response, and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onceward.core.claim import SECOND, Entry, Status
from onceward.core.timestamp import to_text
from onceward.hub.claims.given_response import is_http

Tone = Literal["replay", "run", "wait", "stop"]


@dataclass(frozen=True, slots=True)
class RetrySentence:
    """The sentence about the next retry.

    Attributes:
        tone: Whether a retry is replayed, runs, has to wait, or is refused until a person decides.
        gets: The predicate of the sentence, such as `gets 409 …`.
        because: The reason.
    """

    tone: Tone
    gets: str
    because: str


def retry_sentence(entry: Entry, scope: str, now: int, *, proved_dead: bool = False) -> RetrySentence:
    """Return what a retry of an operation would get now.

    Args:
        entry: The entry.
        scope: Its scope, without the namespace.
        now: The time of the store's clock.
        proved_dead: Whether the process that holds the claim is proved dead.

    Returns:
        The sentence.
    """
    http = is_http(scope)
    if entry.expired(now):
        until = _clock(entry.refuse_until)
        gets = "gets 409 “expired”" if http else "raises Expired"
        return RetrySentence(
            "stop", gets, f"it happened, its result is no longer stored, and its key is refused until {until}"
        )
    match entry.status:
        case Status.COMPLETED:
            return _completed(entry, http=http)
        case Status.FAILED:
            reason = f"attempt {entry.attempt} failed and may be repeated"
            if entry.abandoned:
                reason = f"attempt {entry.attempt} was abandoned, and the effect may be repeated"
            return RetrySentence("run", f"runs again, as attempt {entry.attempt + 1}", reason)
        case Status.IN_DOUBT:
            gets = "gets 409 “in-doubt”" if http else "raises InDoubt"
            return RetrySentence(
                "stop", gets, "nobody knows whether it happened, and it must not be repeated; somebody has to decide"
            )
        case Status.IN_PROGRESS:
            return _in_progress(entry, now, http=http, proved_dead=proved_dead)


def _completed(entry: Entry, *, http: bool) -> RetrySentence:
    until = "forever" if entry.expires_at is None else f"until {_clock(entry.expires_at)}"
    if not entry.outcome.kept:
        gets = "gets 409 “outcome-not-kept”" if http else "raises OutcomeNotKept"
        return RetrySentence("stop", gets, f"it happened, but its result was not stored; the key is taken {until}")
    if entry.outcome.code is not None:
        gets = f"gets the stored {entry.outcome.code} response again"
        return RetrySentence("replay", gets, f"attempt {entry.attempt} completed; the response is replayed {until}")
    return RetrySentence(
        "replay", "gets the recorded result, and nothing runs", f"attempt {entry.attempt} completed; it is kept {until}"
    )


def _in_progress(entry: Entry, now: int, *, http: bool, proved_dead: bool) -> RetrySentence:
    lapsed = entry.lease_until <= now
    if not lapsed and not proved_dead:
        seconds = max(1, (entry.lease_until - now) // SECOND)
        gets = "gets 409 “Request is being processed” with Retry-After" if http else "waits, and then raises Busy"
        return RetrySentence(
            "wait",
            gets,
            f"attempt {entry.attempt} is still running; its lease ends in {seconds} s unless it is renewed",
        )
    ended = (
        f"the lease of attempt {entry.attempt} ended at {_clock(entry.lease_until)}"
        if lapsed
        else "its process is dead"
    )
    if entry.repeatable:
        return RetrySentence(
            "run", f"runs again, as attempt {entry.attempt + 1}", f"{ended}, and the effect may be repeated"
        )
    gets = "gets 409 “in-doubt”" if http else "raises InDoubt"
    return RetrySentence("stop", gets, f"{ended}, and the effect must not be repeated: it goes in doubt")


def _clock(microseconds: int | None) -> str:
    return "then" if microseconds is None else f"{to_text(microseconds)[:19].replace('T', ' ')} UTC"
