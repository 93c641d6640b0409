"""Verdicts: the results that a reconcile hook may return for an effect in doubt.

`committed(value)` and `not_committed(reason)` end the doubt; `pending` and `unknown` leave it open. `not_committed`
needs a reason why the effect can no longer happen. A dead holder or a provider that does not respond is not such a
reason, because a request that was already sent may still arrive.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from onceward.core.record import record
from onceward.errors import InvalidOption


class Final(enum.StrEnum):
    """The reason why an effect can no longer happen."""

    FENCED = "fenced"  # the downstream system refuses the old version from now on
    DEADLINE_PASSED = "deadline_passed"  # the request itself expired and cannot be accepted any more
    PROVIDER_FINAL = "provider_final"  # the provider states that it did not and will not happen
    OPERATOR = "operator"  # a person checked, and takes responsibility


@record(frozen=True, slots=True)
class Committed:
    """Verdict: the effect happened.

    Args:
        value: The result of the effect, which is recorded and replayed. An `Outcome` is recorded as it is.
    """

    value: object


@record(frozen=True, slots=True)
class NotCommitted:
    """Verdict: the effect did not happen and can no longer happen.

    Args:
        reason: The reason why that is final.

    Raises:
        InvalidOption: If `reason` is not a member of `Final`.
    """

    reason: Final

    def __post_init__(self) -> None:
        if not isinstance(self.reason, Final):
            raise InvalidOption(
                "not_committed() needs the reason why the effect can no longer happen, one of "
                + ", ".join(f"Final.{one.name}" for one in Final)
            )


class Open(enum.Enum):
    """Verdict: not known yet (pending), or not known at all (unknown). The entry stays in doubt."""

    PENDING = "pending"
    UNKNOWN = "unknown"


Verdict: TypeAlias = Committed | NotCommitted | Open

committed = Committed
not_committed = NotCommitted
pending = Open.PENDING
unknown = Open.UNKNOWN
