"""The envelope: the result of a tool call in terms that a model can act on.

status       meaning                                             may it be called again?
done         it ran now, and this is its result                  yes, and it returns the same result
replayed     it ran before, and this is that result              yes, and it returns the same result
in_progress  another caller is running it                        yes: that waits for the result, and runs nothing
unknown      it was tried, and may or may not have happened      see `may_retry`
refused      nothing happened                                    see `may_retry`
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from onceward.core.canonical import Json


class CallStatus(enum.StrEnum):
    """The status of a tool call. The table at the top of the module explains each one."""

    DONE = "done"
    REPLAYED = "replayed"
    IN_PROGRESS = "in_progress"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Envelope:
    """The result of a tool call.

    Attributes:
        status: The status of the call.
        tool: The name of the tool.
        key: The key of the call; "" if it has none.
        result: The result of the tool, as JSON.
        receipt: The record of the run that had the effect, the same for every caller.
        may_retry: Whether calling the tool again is safe and may help.
        how_to_check: How to find out what happened, or how to proceed.
        detail: A sentence that explains the status.
        code: The code of the Onceward error behind it, such as `in-doubt`; "" if there is none.
        first_at: When the run that had the effect ended.
    """

    status: CallStatus
    tool: str
    key: str = ""
    result: Json = None
    receipt: dict[str, Json] | None = None
    may_retry: bool = False
    how_to_check: str | None = None
    detail: str = ""
    code: str = ""
    first_at: str | None = None

    @property
    def ok(self) -> bool:
        """True if the call happened, now or before."""
        return self.status in {CallStatus.DONE, CallStatus.REPLAYED}

    def json(self) -> dict[str, Json]:
        """Return all fields as a JSON object.

        Returns:
            A dict with one item for each field.
        """
        return {
            "status": self.status.value,
            "tool": self.tool,
            "key": self.key,
            "result": self.result,
            "receipt": self.receipt,
            "may_retry": self.may_retry,
            "how_to_check": self.how_to_check,
            "detail": self.detail,
            "code": self.code,
            "first_at": self.first_at,
        }
