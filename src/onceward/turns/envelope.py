"""What comes back from a tool call, in words that a model can act on.

status       what happened                                       may it be called again?
done         it ran now, and this is its result                  the same result comes back
replayed     it ran before, and this is that result              the same result comes back
in_progress  somebody else is running it                         yes: that waits for the result, and runs nothing
unknown      it was tried, and may or may not have happened      as `may_retry` says
refused      nothing happened                                    as `may_retry` says
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from onceward.core.canonical import Json


class CallStatus(enum.StrEnum):
    DONE = "done"
    REPLAYED = "replayed"
    IN_PROGRESS = "in_progress"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Envelope:
    """`receipt` is the record of the run that did it, the same for everyone who asks. `detail` says why, in a sentence.

    `may_retry` says whether calling the tool again can do any good and no harm; `how_to_check` how to find out what
    happened when it may not. `code` is that of the error of Onceward behind it, such as `in-doubt`, and empty where there
    is none. `first_at` is when the run ended that did it.
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
        """Whether it happened, now or before."""
        return self.status in {CallStatus.DONE, CallStatus.REPLAYED}

    def json(self) -> dict[str, Json]:
        """All fields, as the model reads them."""
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
