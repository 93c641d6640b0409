"""A negative verdict counts only with a typed reason why it is final."""

from __future__ import annotations

import pytest

from onceward.core.verdict import Committed, Final, NotCommitted, committed, not_committed, pending, unknown
from onceward.errors import InvalidOption


def test_there_are_four_verdicts() -> None:
    assert committed(None) == Committed(None)
    assert [not_committed(reason).reason for reason in Final] == list(Final)
    assert pending is not unknown


@pytest.mark.parametrize("reason", ["fenced", "the holder is dead", None, True, Final])
def test_not_committed_needs_a_final_reason(reason: object) -> None:
    with pytest.raises(InvalidOption, match=r"Final\.FENCED") as caught:
        NotCommitted(reason)  # type: ignore[arg-type]  # from untyped callers

    assert caught.value.code == "invalid-option"
