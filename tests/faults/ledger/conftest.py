"""The once-only cases: each row of the table that compares once-only libraries, on every store.

killed after the effect, before the record   tests/faults/processes/test_killed_holder.py, and every boundary below
eight processes race for one key             tests/faults/processes/test_races.py, and threads and tasks in test_races.py
holder frozen past its lease                 tests/faults/processes/test_frozen_holder.py, and by pinned time in test_late_holder.py
same key, other arguments                    test_key_reuse.py
raises after its work, interrupted           test_interrupted_effects.py, test_cancelled_callers.py
result cannot be kept                        test_unstorable_results.py
result types                                 test_result_types.py
crash at every boundary                      test_crash_boundaries.py, test_transaction_crash_boundaries.py
answers lost after being applied             test_lost_write_results.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.backends import Opener

from onceward import Ledger
from onceward.testing import PinnedClock


@pytest.fixture
def open_ledger(make_store: Opener, clock: PinnedClock) -> Iterator[Callable[[], Ledger]]:
    """Opens ledgers on the test's own data, each with a store of its own; their clock stands still."""
    opened: list[Ledger] = []

    def open_one() -> Ledger:
        opened.append(Ledger(make_store(clock), wait_seconds=10.0))
        return opened[-1]

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Callable[[], Ledger]) -> Ledger:
    return open_ledger()
