"""What becomes of a message that arrives while a turn of its session is not finished. Pure.

    the brain wants     nothing done yet   a side effect executed   commit point reached   others wait already
    no opinion          SUPERSEDE          QUEUE                    QUEUE                  QUEUE
    SUPERSEDE           SUPERSEDE          SUPERSEDE                QUEUE                  QUEUE
    ABSORB              ABSORB             ABSORB                   QUEUE                  QUEUE
    QUEUE               QUEUE              QUEUE                    QUEUE                  QUEUE
    FORCE_COMPLETE      FORCE_COMPLETE     FORCE_COMPLETE           FORCE_COMPLETE         FORCE_COMPLETE

A turn that is full takes no message more: whatever the brain wants, the message is QUEUEd, with the reason `turn_full`.
Whenever the decision is not the one that was wanted, or was made for the brain, a reason is given and recorded.
"""

from __future__ import annotations

import enum


class Decision(enum.StrEnum):
    """What happens to the unfinished turn, and where the new message goes.

    SUPERSEDE       the turn ends; a new one of the same group begins anew with all its messages and the new one
    ABSORB          the same turn begins anew, with the new message too
    QUEUE           the turn goes on; the message waits in a turn of its own, with a group of its own
    FORCE_COMPLETE  the turn reaches its commit point now, so that nothing supersedes it any more; the message waits
    """

    SUPERSEDE = "SUPERSEDE"
    ABSORB = "ABSORB"
    QUEUE = "QUEUE"
    FORCE_COMPLETE = "FORCE_COMPLETE"


TURN_FULL = "turn_full"

_RESTARTING = frozenset({Decision.SUPERSEDE, Decision.ABSORB})


def settled_decision(
    wanted: Decision | None, *, commit_point: bool, effects_started: int, queued: bool = False
) -> tuple[Decision, str | None]:
    """The decision that holds, by the table above, and why it is not simply what was wanted.

    `queued` says that other turns of the session wait behind the unfinished one: who comes later does not overtake.
    """
    if wanted is not None and wanted not in _RESTARTING:
        return wanted, None
    obstacle = None
    if commit_point:
        obstacle = "the running turn has reached its commit point"
    elif queued:
        obstacle = "other messages of the session are waiting already"
    if wanted is None:
        if obstacle is None and effects_started:
            obstacle = "the running turn has executed a side effect"
        return (Decision.SUPERSEDE, None) if obstacle is None else (Decision.QUEUE, obstacle)
    return (wanted, None) if obstacle is None else (Decision.QUEUE, f"{wanted} became QUEUE: {obstacle}")
