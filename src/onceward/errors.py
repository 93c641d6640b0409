"""One exception tree. Every exception carries a stable `code` and says whether trying again can help.

Expected situations (a duplicate, a racing holder) are values inside the ledger; they become exceptions only at
the edge, where `run` and `once` hand back a plain value and have no other way to say it.
"""

from __future__ import annotations

from typing import ClassVar


class OncewardError(Exception):
    """The root of everything Onceward raises."""

    code: ClassVar[str] = "onceward"
    retryable: ClassVar[bool] = False


class InvalidKey(OncewardError):
    """A key, scope, fingerprint or argument has no usable form. Nothing was written and nothing ran."""

    code = "invalid-key"


class InvalidOption(OncewardError):
    """An option has a value that cannot work, found before anything was written or ran."""

    code = "invalid-option"


class NotGuarded(OncewardError):
    """A handler relies on an idempotency middleware that does not stand around it. Nothing was checked or recorded."""

    code = "not-guarded"


class KeyReused(OncewardError):
    """The key was already used with other arguments; the earlier outcome is not yours to have."""

    code = "key-reused"


class Busy(OncewardError):
    """Another caller still runs this key and the waiting time is over."""

    code = "busy"
    retryable = True

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InDoubt(OncewardError):
    """The effect may or may not have happened, and it may not be repeated. A reconcile hook or an operator decides."""

    code = "in-doubt"

    def __init__(self, message: str, version: int = 0) -> None:
        super().__init__(message)
        self.version = version


class NotDone(OncewardError):
    """Raise this from an effect to say that it certainly did nothing, so that the key may run again."""

    code = "not-done"
    retryable = True


class Superseded(NotDone):
    """The turn was superseded, or its attempt is over, before the effect began: nothing happened, and nothing will."""

    code = "superseded"
    retryable = False


class ClaimLost(OncewardError):
    """The claim was taken over by another holder; roll back what is still open and use the recorded outcome."""

    code = "claim-lost"
    retryable = True


class TransactionConflict(OncewardError):
    """The caller's transaction cannot see or lock the claim any more; roll back and try again in a new one."""

    code = "transaction-conflict"
    retryable = True


class InsideBoundTransaction(OncewardError):
    """Another ledger write was asked for inside a bound transaction; it would wait for that transaction for ever."""

    code = "inside-bound-transaction"


class StoreUnavailable(OncewardError):
    """The store did not answer: the write may or may not have been applied."""

    code = "store-unavailable"
    retryable = True


class StoreClosed(OncewardError):
    """The store or ledger was closed before this call."""

    code = "store-closed"


class InvalidStoreUrl(OncewardError):
    """The store URL is malformed, has an unknown scheme or option, or needs a driver that is not installed."""

    code = "invalid-store-url"


class SchemaTooNew(OncewardError):
    """The store was written by a newer Onceward; upgrade this one."""

    code = "schema-too-new"


class NotDurable(OncewardError):
    """The store may forget acknowledged writes, so an irreversible effect cannot be guarded by it."""

    code = "store-not-durable"


class WriteRefused(OncewardError):
    """The database refused this write's data, alone and for good; nothing was written."""

    code = "write-refused"


class OutcomeNotKept(OncewardError):
    """The effect happened, once, but its result could not be kept or cannot be rebuilt here."""

    code = "outcome-not-kept"


class InvalidInput(OncewardError):
    """What was sent cannot be accepted; nothing was written. `fields` says which part and why, where that is known."""

    code = "invalid-input"

    def __init__(self, message: str, fields: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class TooLarge(OncewardError):
    """What was sent is larger than its limit; nothing was written."""

    code = "too-large"


class NotFound(OncewardError):
    """There is nothing of that name."""

    code = "not-found"


class InvalidConfig(OncewardError):
    """A configuration file, environment variable or flag has a name or a value that cannot work."""

    code = "invalid-config"


# What the hub's client raises besides.


class HubUnavailable(StoreUnavailable):
    """The hub did not answer, or said that it cannot now: the request may or may not have been carried out.

    `key` is the idempotency key that it carried, empty for one that changes nothing: the same call with it goes on.
    """

    code = "hub-unavailable"

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Unauthorized(OncewardError):
    """The hub needs a token, or the one that was sent is malformed, unknown or revoked. Nothing was done."""

    code = "unauthorized"


class Forbidden(OncewardError):
    """The token does not reach this far, or the hub does not answer to this host or origin. Nothing was done."""

    code = "forbidden"


class UnexpectedAnswer(OncewardError):
    """The answer is none that a hub of this version gives: a failure inside of it, or somebody else answered."""

    code = "unexpected-answer"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class EventsLost(OncewardError):
    """The events behind `after_event_id` and before `oldest_event_id` were asked for and are no longer kept."""

    code = "events-lost"

    def __init__(self, message: str, after_event_id: int, oldest_event_id: int) -> None:
        super().__init__(message)
        self.after_event_id = after_event_id
        self.oldest_event_id = oldest_event_id


class OtherLog(OncewardError):
    """The hub's event log is another one than that of the cursor; the two have nothing in common."""

    code = "other-log"


class Conflict(OncewardError):
    """What was asked for does not fit what is there by now; nothing was written. Look again, then decide."""

    code = "conflict"


class AlreadyThere(Conflict):
    """The name is taken by something else."""

    code = "already-there"


class Expired(OncewardError):
    """It was there, and its time is over."""

    code = "expired"


def described(error: BaseException) -> str:
    """The kind of an exception and what it says. Its own code may fail at that, which must not hide what it means."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # whatever it is
        return type(error).__name__
