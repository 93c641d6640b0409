"""The rules that all ready-made hooks share: what counts as evidence, and what leaves a doubt open.

A hook never raises because of what a provider did: the caller would see that error instead of the doubt. A response
that is not evidence gives `unknown`, and is logged. Absence is not evidence either, because a request that was sent may still
arrive. Only after `final_after_seconds`, counted from the claim by the store's clock, is it `not_committed`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from onceward.core.claim import Entry
from onceward.core.key import short_key
from onceward.core.log_event import log_event
from onceward.core.verdict import Committed, Final, NotCommitted, Open, Verdict
from onceward.errors import InvalidOption, described
from onceward.ledger.doubts import claim_age_seconds
from onceward.ledger.terms import check_seconds

logger = logging.getLogger("onceward.reconcile")

Hook: TypeAlias = Callable[[Entry], Awaitable[Verdict]]
FoundFunction: TypeAlias = Callable[[Any], object]

# A year: no request is valid for longer.
FINAL_SECONDS_MAX = 366 * 86_400.0
# A caller waits for the hook. A provider that does not answer within a minute is down.
TIMEOUT_SECONDS_MAX = 60.0


class NoEvidence(Exception):  # not an error: the answer to a question
    """The provider's response proves nothing. The message says why."""


def hook(name: str, ask: Hook) -> Hook:
    """Return a hook that answers `unknown` and logs the reason if `ask` finds no evidence or fails."""

    async def reconcile(entry: Entry) -> Verdict:
        try:
            return await ask(entry)
        except NoEvidence as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  # also of the user's functions: the doubt must stay visible
            reason = described(error)
        log_event(
            logger.warning,
            "reconcile_unknown",
            key=short_key(entry.key),
            reconciler=name,
            reason=reason,
            hint="the key stays in doubt; correct the cause and call again, or resolve it by hand",
        )
        return Open.UNKNOWN

    return reconcile


def check_options(timeout_seconds: object, final_after_seconds: object = None, found: object = None) -> None:
    """Refuse options that are out of range."""
    check_seconds("timeout_seconds", timeout_seconds, TIMEOUT_SECONDS_MAX, positive=True)
    if final_after_seconds is not None:
        check_seconds("final_after_seconds", final_after_seconds, FINAL_SECONDS_MAX, positive=True)
    if found is not None and not callable(found):
        raise InvalidOption(f"found must be a function of what the provider returned, not {found!r}")


async def verdict_of(found: FoundFunction | None, data: object) -> Verdict:
    """Return the verdict for something that exists at the provider, as the user's function sees it."""
    if found is None:
        return Committed(data)
    result: Any = found(data)
    if hasattr(type(result), "__await__"):
        result = await result
    match result:
        case Committed() | NotCommitted() | Open():
            return result
        case True:
            return Committed(data)
        case False:
            return Open.PENDING
        case None:
            raise NoEvidence("found() returned None; return a verdict, True, False or the value of the effect")
        case _:
            return Committed(result)


def absent(entry: Entry, final_after_seconds: float | None) -> Verdict:
    """Return the verdict for something that the provider does not have."""
    if final_after_seconds is None:
        raise NoEvidence("the provider does not have it, which proves nothing without final_after_seconds")
    age = claim_age_seconds(entry)
    if age is None:
        raise NoEvidence("the provider does not have it, and the age of the claim is not known")
    return NotCommitted(Final.DEADLINE_PASSED) if age >= final_after_seconds else Open.PENDING


def text_from(point: object, *names: str) -> str:
    """Return an id from a recovery point: the point itself, or the first of its fields that exists."""
    if isinstance(point, Mapping):
        point = next((point[name] for name in names if name in point), None)
    if not isinstance(point, str) or not point:
        raise NoEvidence(f"the recovery point has no id: it must be a string, or have a field {' or '.join(names)}")
    return point
