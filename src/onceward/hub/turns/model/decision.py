"""Decision about a message that arrives while a turn of its session is unfinished. Pure: no I/O.

    the brain wants     no effect yet      a side effect executed   commit point reached   others already wait
    no preference       SUPERSEDE          QUEUE                    QUEUE                  QUEUE
    SUPERSEDE           SUPERSEDE          SUPERSEDE                QUEUE                  QUEUE
    ABSORB              ABSORB             ABSORB                   QUEUE                  QUEUE
    QUEUE               QUEUE              QUEUE                    QUEUE                  QUEUE
    FORCE_COMPLETE      FORCE_COMPLETE     FORCE_COMPLETE           FORCE_COMPLETE         FORCE_COMPLETE

A full turn takes no more messages: whatever the brain wants, the message is QUEUEd with the reason `turn_full`.
A reason is returned and recorded when the decision differs from the brain's wish, and when a brain without a preference
gets QUEUE.
"""

from __future__ import annotations

import enum


class Decision(enum.StrEnum):
    """Effect of a new message on the unfinished turn of its session.

    Attributes:
        SUPERSEDE: The turn ends. A new turn of the same group starts with all its messages and the new one.
        ABSORB: The same turn starts again, with the new message added.
        QUEUE: The turn continues. The message waits in a separate turn with a separate group.
        FORCE_COMPLETE: The turn reaches its commit point now, so it can no longer be superseded. The message waits in
            a separate turn, as with QUEUE.
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
    """Return the decision that applies, by the table above, and the reason if it is not simply the brain's wish.

    Args:
        wanted: The brain's wish, or None if it has no preference.
        commit_point: Whether the unfinished turn has reached its commit point.
        effects_started: The number of effects that the unfinished turn has started.
        queued: Whether other turns of the session wait behind the unfinished one. A later message must not overtake
            them.

    Returns:
        The decision, and the reason for it or None.
    """
    if wanted is not None and wanted not in _RESTARTING:
        return wanted, None
    obstacle = None
    if commit_point:
        obstacle = "the running turn has reached its commit point"
    elif queued:
        obstacle = "other messages of the session are already waiting"
    if wanted is None:
        if obstacle is None and effects_started:
            obstacle = "the running turn has executed a side effect"
        return (Decision.SUPERSEDE, None) if obstacle is None else (Decision.QUEUE, obstacle)
    return (wanted, None) if obstacle is None else (Decision.QUEUE, f"{wanted} became QUEUE: {obstacle}")
