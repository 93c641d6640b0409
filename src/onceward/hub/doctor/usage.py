"""Stored bytes of the principals: whether their counters are correct, and whether a quota is nearly used up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onceward.hub.db.engine import Database
from onceward.hub.doctor.check_result import CheckResult, ok, problem, warning
from onceward.hub.tasks.quota import check_counters, largest_usage

# A principal that uses more of its quota than this needs attention before its uploads are refused.
NEARLY_FULL = 0.9
# The first principals show what is going on.
_SHOWN_MAX = 3


def usage_checks(database: Database, bytes_max: int) -> Iterator[CheckResult]:
    """Check the counters of a database, and its quota."""
    if wrong := check_counters(database, correct=False):
        names = _named([counter.principal for counter in wrong])
        detail = f"the counters of stored bytes of {names} differ from their attachments"
        yield problem(
            "stored-bytes", detail, "onceward admin fsck corrects them", counters=[one.json() for one in wrong]
        )
    else:
        yield ok("stored-bytes", "the counters of stored bytes are correct")
    yield quota_check({one.principal: one.stored_bytes for one in largest_usage(database, _SHOWN_MAX + 1)}, bytes_max)


def quota_check(used: Mapping[str, int], bytes_max: int) -> CheckResult:
    """Compare the bytes of each principal with the quota."""
    if not bytes_max:
        return ok("quota", "principals may store any number of bytes")
    full = [name for name, stored in used.items() if stored > NEARLY_FULL * bytes_max]
    if not full:
        return ok("quota", f"no principal uses more than {NEARLY_FULL:.0%} of its {bytes_max} bytes")
    return warning(
        "quota",
        f"these principals use more than {NEARLY_FULL:.0%} of their {bytes_max} bytes: {_named(full)}",
        "delete attachments, or raise attachments.max_bytes_per_principal; onceward admin usage lists all",
    )


def _named(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN_MAX]) + (", …" if len(names) > _SHOWN_MAX else "")
