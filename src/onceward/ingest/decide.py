"""What becomes of an entry whose keys are, or are not, there already. Pure.

An entry is looked for by its primary and by its secondary key, within its policy. A key that is null finds nothing.

    primary finds   secondary finds   role       under `skip`                under `update`
    -               -                 both       insert                      insert
    A               -                 both       skip A                      update A
    A               A                 both       skip A                      update A
    -               A                 identity   skip A (by secondary)       update A (by secondary)
    -               A                 hint       insert, secondary null      insert, secondary null
    A               B                 identity   skip A, split with B        update A, split with B
    A               B                 hint       skip A                      update A

The primary key wins, and nothing is ever done to B. `skip` writes nothing at all.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple, TypeAlias

from onceward.core.canonical import same_value
from onceward.ingest.columns import COLUMNS, CONTENT, PRIMARY, SECONDARY, UPDATABLE, WRITTEN
from onceward.ingest.draft import Draft, metadata_text
from onceward.ingest.merge import merged
from onceward.ingest.policy import Policy

# A row as it is stored: the columns in their order, the metadata as JSON text.
Row: TypeAlias = tuple[Any, ...]

POSITION = {name: number for number, name in enumerate(COLUMNS)}
# How a time is written that can be compared; anything else is no version.
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z", re.ASCII)

_SENT = {name: WRITTEN.index(name) for name in UPDATABLE}
_CONTENT = slice(POSITION[CONTENT[0]], POSITION[CONTENT[-1]] + 1)


class Decision(NamedTuple):
    """`target` is the entry that was found, by the key `matched_on`; `split_with` is another that was found as well."""

    action: Literal["insert", "skip", "update"]
    target: int | None = None
    matched_on: Literal["primary", "secondary"] | None = None
    split_with: int | None = None
    keeps_secondary: bool = True


INSERT = Decision("insert")
INSERT_WITHOUT_SECONDARY = Decision("insert", keeps_secondary=False)


def decide(policy: Policy | None, by_primary: int | None, by_secondary: int | None) -> Decision:
    """The row of the table above, for the ids of the entries that the two keys have found."""
    if policy is None:
        return INSERT
    is_hint = policy.secondary_role == "hint"
    if by_primary is None and (by_secondary is None or is_hint):
        return INSERT if by_secondary is None else INSERT_WITHOUT_SECONDARY
    action = policy.conflict_action
    if by_primary is None:
        return Decision(action, by_secondary, "secondary")
    is_split = not is_hint and by_secondary is not None and by_secondary != by_primary
    return Decision(action, by_primary, "primary", by_secondary if is_split else None)


def is_stale(stored_time: object, stored_ref: str | None, time: object, ref: str | None) -> bool:
    """Whether an update is older than what is stored: by the time of its content, and at the same time by its
    reference, so that all orders of arrival end alike. Without both times the one that arrives wins, and so does one
    of the same time that names no reference: it may be about the stored version itself.
    """
    if not _is_time(stored_time) or not _is_time(time):
        return False
    return (str(time), ref or stored_ref or "") < (str(stored_time), stored_ref or "")


def changes(
    stored: Row, draft: Draft, *, primary_is_free: bool, secondary_is_free: bool
) -> tuple[dict[str, Any], bool]:
    """The columns that an update really changes, with their new values, and whether it was stale.

    Only columns that the payload has, and that the policy lets change: an absent column is never touched, and an explicit
    null clears one. A key changes only from null to one that no
    other entry has, and not even that where the policy lets nothing change. `InvalidInput` when the metadata would
    become too large.
    """
    policy, payload = draft.policy, draft.payload
    fields = UPDATABLE if policy is None or policy.update_fields is None else policy.update_fields
    if not fields:
        return {}, False
    changed: dict[str, Any] = {}
    # A rerun is mostly this, and then nobody needs to know what the metadata says.
    if draft.values[: len(CONTENT)] != stored[_CONTENT]:
        sent_metadata = payload.get("metadata")
        metadata = json.loads(stored[POSITION["metadata"]])
        new_time = sent_metadata.get("source_time") if isinstance(sent_metadata, dict) else None
        new_ref = draft.values[_SENT["external_ref"]]
        if is_stale(metadata.get("source_time"), stored[POSITION["external_ref"]], new_time, new_ref):
            return {}, True
        for name in fields:
            value = draft.values[_SENT[name]]
            if name not in payload or value == stored[POSITION[name]]:
                continue
            if name == "metadata":
                # An explicit null clears the column: it then holds what an entry without metadata has.
                together = merged(metadata, sent_metadata) or {}
                if same_value(together, metadata):
                    continue
                value = metadata_text(together)
            changed[name] = value
    if primary_is_free and draft.primary is not None and stored[POSITION[PRIMARY]] is None:
        changed[PRIMARY] = draft.primary[1]
    if secondary_is_free and draft.secondary is not None and stored[POSITION[SECONDARY]] is None:
        changed[SECONDARY] = draft.secondary[1]
    return changed, False


def _is_time(value: object) -> bool:
    return isinstance(value, str) and _TIME.fullmatch(value) is not None
