"""Ingest: the policies, what inserts did, and the newest entries of the active schema."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from onceward.hub.console.pages.overview import counters
from onceward.hub.console.visit import Visit
from onceward.hub.db_threads import in_thread
from onceward.hub.ingest.entries.policy import Policy, list_policies
from onceward.hub.ingest.entries.schema import active_schema
from onceward.hub.ingest.newest import SEARCHED_MAX, count_entries, newest_entries

_LIMIT = 50
_COUNTERS = (
    ("entry_inserted", "Inserted", "new entries", "good"),
    ("entry_updated", "Updated", "found again, and the policy updates; also without a change", "plain"),
    ("entry_skipped", "Skipped", "found again, and the policy skips", "plain"),
    ("entry_failed", "Failed", "refused, nothing written: 400 or 409", "bad"),
)


async def show(visit: Visit) -> Response:
    """Show the page."""
    hub, after = visit.hub, visit.query("after")
    source, content_type = visit.query("source"), visit.query("content_type")

    def read() -> dict[str, Any]:
        with hub.database.read() as tx:
            schema = active_schema(tx)
            policies = list_policies(tx, schema)
            page = newest_entries(tx, schema, _LIMIT, after, source=source, content_type=content_type)
            count, more = count_entries(tx, schema)
            return {
                "schema": schema.name,
                "policies": [(one, changes_of(one)) for one in policies],
                "policy_keys": {one.policy_id: one.policy_key for one in policies},
                "entries": page.items,
                "next_after": page.next_after,
                "count": f"{count:,}+" if more else f"{count:,}",
            }

    found = await in_thread(read)
    saved = visit.query("saved")
    return await visit.page(
        "ingest.html",
        **found,
        counters=counters(visit.console, _COUNTERS),
        after=after,
        source=source,
        content_type=content_type,
        searched_max=SEARCHED_MAX,
        saved=saved if any(one.policy_key == saved for one, _ in found["policies"]) else "",
        may_paste=visit.visitor.may("ingest", "write"),
    )


def changes_of(policy: Policy) -> str:
    """Return what an update under this policy changes, for people."""
    if policy.conflict_action == "skip":
        return "nothing: duplicates are skipped"
    if policy.update_fields is None:
        return "all columns that can change"
    return ", ".join(policy.update_fields) or "nothing"
