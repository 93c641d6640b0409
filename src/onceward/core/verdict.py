"""What a reconcile hook may say of an effect that is in doubt.

`committed(value)` and `not_committed(reason)` end the doubt; `pending` and `unknown` leave it. Saying that nothing
happened needs a reason why that is final: that nobody answers, or that the holder is dead, is no such reason, because
a request already sent may still arrive.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from onceward.core.record import record
from onceward.errors import InvalidOption


class Final(enum.StrEnum):
    """Why an effect can no longer happen."""

    FENCED = "fenced"  # the downstream system refuses the old version from now on
    DEADLINE_PASSED = "deadline_passed"  # the request itself expired; it cannot be accepted any more
    PROVIDER_FINAL = "provider_final"  # the provider says that it did not and will not happen
    OPERATOR = "operator"  # a person looked, and answers for it


@record(frozen=True, slots=True)
class Committed:
    """It happened, with this result."""

    value: object


@record(frozen=True, slots=True)
class NotCommitted:
    """It did not happen and cannot any more."""

    reason: Final

    def __post_init__(self) -> None:
        if not isinstance(self.reason, Final):
            raise InvalidOption(
                "not_committed() takes a reason why that is final: " + ", ".join(f"Final.{one.name}" for one in Final)
            )


class Open(enum.Enum):
    """It cannot be said, for now or at all."""

    PENDING = "pending"
    UNKNOWN = "unknown"


Verdict: TypeAlias = Committed | NotCommitted | Open

committed = Committed
not_committed = NotCommitted
pending = Open.PENDING
unknown = Open.UNKNOWN
