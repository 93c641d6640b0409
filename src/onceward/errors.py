"""The exceptions that Onceward raises, in one tree below `OncewardError`.

Every exception has a stable `code` and a flag `retryable`, which says whether trying again can help. Inside the
ledger, expected situations (a duplicate, a concurrent holder) are values. They become exceptions only in `run` and
`once`, which return the plain result of the effect and have no other way to report them.
"""

from __future__ import annotations

from typing import ClassVar


class OncewardError(Exception):
    """The base class of every exception that Onceward raises.

    Attributes:
        code: A stable name of the error, which never changes. Match it instead of the message.
        retryable: Whether the same call may succeed later.
    """

    code: ClassVar[str] = "onceward"
    retryable: ClassVar[bool] = False


class InvalidKey(OncewardError):
    """A key, scope, fingerprint or argument is not valid. Nothing was written and nothing ran."""

    code = "invalid-key"


class InvalidOption(OncewardError):
    """An option has an invalid value. Nothing was written and nothing ran."""

    code = "invalid-option"


class NotGuarded(OncewardError):
    """A handler needs an idempotency middleware, and none is installed around it. Nothing was checked or recorded."""

    code = "not-guarded"


class KeyReused(OncewardError):
    """The key was already used with different arguments. The earlier outcome is not returned."""

    code = "key-reused"


class Busy(OncewardError):
    """Another caller still runs this key, and the wait time is over.

    Args:
        message: The message of the exception.
        retry_after_seconds: The time after which a retry makes sense, also available as an attribute.
    """

    code = "busy"
    retryable = True

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InDoubt(OncewardError):
    """The effect may or may not have happened, and must not be repeated. A reconcile hook or an operator decides.

    Args:
        message: The message of the exception.
        version: The version of the entry in doubt, also available as an attribute. `Ledger.resolve` needs it.
    """

    code = "in-doubt"

    def __init__(self, message: str, version: int = 0) -> None:
        super().__init__(message)
        self.version = version


class NotDone(OncewardError):
    """Raised by an effect to declare that it certainly did nothing, so that the key may run again."""

    code = "not-done"
    retryable = True


class Superseded(NotDone):
    """The turn was superseded, or its attempt ended, before the effect began. Nothing happened, and nothing will."""

    code = "superseded"
    retryable = False


class ClaimLost(OncewardError):
    """Another holder took over the claim. Roll back any open work and use the recorded outcome."""

    code = "claim-lost"
    retryable = True


class TransactionConflict(OncewardError):
    """The caller's transaction can no longer see or lock the claim. Roll it back and try again in a new one."""

    code = "transaction-conflict"
    retryable = True


class InsideBoundTransaction(OncewardError):
    """A ledger write was attempted inside a bound transaction. It would wait for that transaction forever."""

    code = "inside-bound-transaction"


class StoreUnavailable(OncewardError):
    """The store did not respond. The write may or may not have been applied."""

    code = "store-unavailable"
    retryable = True


class StoreMisconfigured(StoreUnavailable):
    """The store cannot be used until an operator corrects it: a password, a privilege, a missing database.

    Nothing was written. This is a subclass of `StoreUnavailable`, so code that handles a failing store handles it
    too. A retry does not help: `retryable` is false.
    """

    code = "store-misconfigured"
    retryable = False


class StoreOverloaded(StoreUnavailable):
    """All connections to the store are in use: those of this process, of a pooler, or of the server.

    Nothing was written. This is a subclass of `StoreUnavailable`, so code that handles a failing store handles it
    too.
    """

    code = "store-overloaded"


class StoreClosed(OncewardError):
    """The store or ledger was closed before this call."""

    code = "store-closed"


class InvalidStoreUrl(OncewardError):
    """The store URL is malformed, has an unknown scheme or option, or needs a driver that is not installed."""

    code = "invalid-store-url"


class SchemaTooNew(OncewardError):
    """A newer version of Onceward has changed the store. Upgrade this installation."""

    code = "schema-too-new"


class NotDurable(OncewardError):
    """The store may lose acknowledged writes, so it cannot guard an irreversible effect."""

    code = "store-not-durable"


class WriteRefused(OncewardError):
    """The database refused the data of this write permanently. Nothing of this write was stored."""

    code = "write-refused"


class OutcomeNotKept(OncewardError):
    """The effect happened once, but its result could not be stored, or cannot be rebuilt in this process."""

    code = "outcome-not-kept"


class InvalidInput(OncewardError):
    """The input is not valid. Nothing was written.

    Args:
        message: The message of the exception.
        fields: Pairs of a field name and the reason why it was refused, where they are known. Also an attribute.
    """

    code = "invalid-input"

    def __init__(self, message: str, fields: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class TooLarge(OncewardError):
    """The input is larger than its limit. Nothing was written."""

    code = "too-large"


class TooManyRequests(OncewardError):
    """Too much work is already waiting. Nothing was written.

    Args:
        message: The message of the exception.
        retry_after_seconds: The time after which a retry makes sense, also available as an attribute.
    """

    code = "too-many-requests"
    retryable = True

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class NotFound(OncewardError):
    """No object has this name or id."""

    code = "not-found"


class InvalidConfig(OncewardError):
    """A configuration file, environment variable or flag has an unknown name or an invalid value."""

    code = "invalid-config"


# Raised by the hub's client, in addition to the exceptions above.


class HubUnavailable(StoreUnavailable):
    """The hub did not respond, or is temporarily unable to. The request may or may not have been carried out.

    Args:
        message: The message of the exception.
        key: The idempotency key of the request, also available as an attribute. Repeat the call with it to continue.
            Empty for a request that changes nothing.
    """

    code = "hub-unavailable"

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Unauthorized(OncewardError):
    """The hub needs a token, or the token is malformed, unknown, revoked or expired. Nothing was done."""

    code = "unauthorized"


class Forbidden(OncewardError):
    """The token lacks the needed scope, or the hub refuses this host or origin. Nothing was done."""

    code = "forbidden"


class UnexpectedAnswer(OncewardError):
    """The response is not one that a hub of this version sends: the hub failed, or another server responded.

    Args:
        message: The message of the exception.
        status: The HTTP status of the response, also available as an attribute.
    """

    code = "unexpected-answer"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class EventsLost(OncewardError):
    """Events between the cursor and the oldest stored event were deleted by retention.

    Args:
        message: The message of the exception.
        after_event_id: The cursor: the id after which events were requested. Also an attribute.
        oldest_event_id: The id of the oldest event that is still stored. Also an attribute.
    """

    code = "events-lost"

    def __init__(self, message: str, after_event_id: int, oldest_event_id: int) -> None:
        super().__init__(message)
        self.after_event_id = after_event_id
        self.oldest_event_id = oldest_event_id


class OtherLog(OncewardError):
    """The cursor belongs to a different event log than the hub's current one. The two logs share no events."""

    code = "other-log"


class Conflict(OncewardError):
    """The request conflicts with the current state. Nothing was written. Read the state again, then decide."""

    code = "conflict"


class AlreadyThere(Conflict):
    """The name is already used by another object."""

    code = "already-there"


class Expired(OncewardError):
    """The object existed, and its retention is over.

    For a key with `after_retention="refuse"`: its effect has happened, and its result is no longer kept. Nothing runs.
    """

    code = "expired"


def missing_extra(error: ModuleNotFoundError, module: str, extra: str) -> ModuleNotFoundError:
    """Return an import error that names the extra to install.

    Args:
        error: The error that the import of the missing package raised.
        module: The module of Onceward that needs the package.
        extra: The extra that installs the package.

    Returns:
        A new error, to be raised from `error`.
    """
    return ModuleNotFoundError(f"{module} needs {error.name!r}: {install_command(extra)}", name=error.name)


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for a release and for a checkout.

    pip reads the extras of an installed package from its metadata. So the name is enough for a release, and also for a
    checkout that was installed. A checkout that is only on Python's path has no metadata: the command names its folder.

    Args:
        extra: The name of the extra.

    Returns:
        A command for a shell.
    """
    # Imported only for the message: they would double the time that the import of this package takes.
    import shlex  # noqa: PLC0415
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    try:
        distribution("onceward")
    except PackageNotFoundError:
        checkout = Path(__file__).parents[2]
        if (checkout / "pyproject.toml").is_file():
            return f"pip install --editable {shlex.quote(f'{checkout}[{extra}]')}"
    return f"pip install 'onceward[{extra}]'"


def described(error: BaseException) -> str:
    """Return the class name and message of an exception, or only the class name if its `__str__` raises.

    Args:
        error: The exception to describe.

    Returns:
        A text such as `ValueError: no such order`.
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # `__str__` of a user's exception may raise anything
        return type(error).__name__
