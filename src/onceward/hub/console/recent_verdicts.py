"""The last verdicts of reconcile hooks that this process has asked for, in memory, as evidence on the pages."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from onceward.hub.db.timestamps import now_text

VERDICTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class RecentVerdict:
    """A verdict: when, `committed`, `not_committed` or `open`, and the sentence of the hook."""

    at: str
    outcome: str
    detail: str


class RecentVerdicts:
    """The last verdict for each operation; the oldest one is forgotten first."""

    def __init__(self, verdicts_max: int = VERDICTS_MAX) -> None:
        self._max = verdicts_max
        self._verdicts: OrderedDict[tuple[str, str], RecentVerdict] = OrderedDict()

    def add(self, scope: str, key: str, outcome: str, detail: str) -> None:
        self._verdicts.pop((scope, key), None)
        self._verdicts[scope, key] = RecentVerdict(now_text(), outcome, detail)
        while len(self._verdicts) > self._max:
            self._verdicts.popitem(last=False)

    def of(self, scope: str, key: str) -> RecentVerdict | None:
        return self._verdicts.get((scope, key))
