"""Decision table for an entry: insert, skip or update, depending on which of its keys exist. Pure.

An entry is searched for by its primary and its secondary key, within its policy. A null key finds nothing.

    primary finds   secondary finds   role       under `skip`                under `update`
    -               -                 both       insert                      insert
    A               -                 both       skip A                      update A
    A               A                 both       skip A                      update A
    -               A                 identity   skip A (by secondary)       update A (by secondary)
    -               A                 hint       insert, secondary null      insert, secondary null
    A               B                 identity   skip A, split with B        update A, split with B
    A               B                 hint       skip A                      update A

The primary key wins, and B is never changed. `skip` writes nothing at all. `merged` combines the metadata of an update
with the stored metadata.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple, TypeAlias

from onceward.core.canonical import Json, same_value
from onceward.hub.ingest.entries.columns import COLUMNS, CONTENT, PRIMARY, SECONDARY, UPDATABLE, WRITTEN
from onceward.hub.ingest.entries.draft import Draft, metadata_text
from onceward.hub.ingest.entries.policy import Policy


def merged(stored: Json, incoming: Json) -> Json:
    """Merge two JSON objects, name by name and at every depth, into a new one.

    Any other incoming value replaces the stored value, including a list (as a whole) and an explicit null. Names that
    only one of the two has stay.
    """
    if not isinstance(stored, dict) or not isinstance(incoming, dict):
        return incoming
    result = dict(stored)
    for name, value in incoming.items():
        result[name] = merged(stored[name], value) if name in stored else value
    return result


# A stored row: the columns in the order of COLUMNS, the metadata as JSON text.
Row: TypeAlias = tuple[Any, ...]

POSITION = {name: number for number, name in enumerate(COLUMNS)}
# The text form of a time that can be compared. A value in any other form does not count as a version.
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z", re.ASCII)

_SENT = {name: WRITTEN.index(name) for name in UPDATABLE}
_CONTENT = slice(POSITION[CONTENT[0]], POSITION[CONTENT[-1]] + 1)


class EntryDecision(NamedTuple):
    """The action for an entry: insert, skip or update.

    `target` is the entry that was found, by the key `matched_on`. `split_with` is another entry, found by the secondary
    key.
    """

    action: Literal["insert", "skip", "update"]
    target: int | None = None
    matched_on: Literal["primary", "secondary"] | None = None
    split_with: int | None = None
    keeps_secondary: bool = True


INSERT = EntryDecision("insert")
INSERT_WITHOUT_SECONDARY = EntryDecision("insert", keeps_secondary=False)


def decide(policy: Policy | None, by_primary: int | None, by_secondary: int | None) -> EntryDecision:
    """Look up the decision in the table above, for the ids of the entries that the two keys found."""
    if policy is None:
        return INSERT
    is_hint = policy.secondary_role == "hint"
    if by_primary is None and (by_secondary is None or is_hint):
        return INSERT if by_secondary is None else INSERT_WITHOUT_SECONDARY
    action = policy.conflict_action
    if by_primary is None:
        return EntryDecision(action, by_secondary, "secondary")
    is_split = not is_hint and by_secondary is not None and by_secondary != by_primary
    return EntryDecision(action, by_primary, "primary", by_secondary if is_split else None)


def is_stale(stored_time: object, stored_ref: str | None, time: object, ref: str | None) -> bool:
    """Return whether an update is older than the stored version.

    Versions are ordered by the time of their content, then by reference, so the order of arrival does not change the
    final state. If one of the times is missing, the update wins. It also wins at the same time if it has no reference,
    because it may concern the stored version itself.
    """
    if not _is_time(stored_time) or not _is_time(time):
        return False
    return (str(time), ref or stored_ref or "") < (str(stored_time), stored_ref or "")


def changes(
    stored: Row, draft: Draft, *, primary_is_free: bool, secondary_is_free: bool
) -> tuple[dict[str, Any], bool]:
    """Return the columns that an update really changes, with their new values, and whether it was stale.

    Only columns that are in the payload and that the policy allows can change: an absent column stays, and an explicit
    null clears one. A key changes only from null to a key that no other entry has, and not at all if the policy allows
    no changes. `InvalidInput` is raised if the metadata would become too large.
    """
    policy, payload = draft.policy, draft.payload
    fields = UPDATABLE if policy is None or policy.update_fields is None else policy.update_fields
    if not fields:
        return {}, False
    changed: dict[str, Any] = {}
    # Most repeated inserts have equal content, and then the metadata need not be parsed.
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
                # An explicit null clears the column, as in an entry without metadata.
                new_metadata = merged(metadata, sent_metadata) or {}
                if same_value(new_metadata, metadata):
                    continue
                value = metadata_text(new_metadata)
            changed[name] = value
    if primary_is_free and draft.primary is not None and stored[POSITION[PRIMARY]] is None:
        changed[PRIMARY] = draft.primary[1]
    if secondary_is_free and draft.secondary is not None and stored[POSITION[SECONDARY]] is None:
        changed[SECONDARY] = draft.secondary[1]
    return changed, False


def _is_time(value: object) -> bool:
    return isinstance(value, str) and _TIME.fullmatch(value) is not None
