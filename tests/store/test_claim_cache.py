"""The claim cache of a process: claims in progress, up to a limit."""

from __future__ import annotations

import pytest
from tests.store.blockable_store import begin, settle

from onceward.core.claim import Ref, WriteResult, apply
from onceward.store import claim_cache
from onceward.store.claim_cache import ClaimCache


def claimed(key: str) -> WriteResult:
    return WriteResult(True, apply(None, begin(key), 1, 1), 1)


def test_a_claim_is_cached_until_it_is_settled() -> None:
    remembered, ref, result = ClaimCache(), Ref("s", "a"), claimed("a")
    remembered.update([ref], [result])
    assert remembered.get(ref) == result.entry

    remembered.update([ref], [WriteResult(True, apply(result.entry, settle("a", 1), 2, 1), 2)])
    assert remembered.get(ref) is None


def test_the_number_of_cached_claims_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_cache, "CLAIMS_MAX", 3)
    remembered, refs = ClaimCache(), [Ref("s", f"{number}") for number in range(20)]
    for ref in refs:
        remembered.update([ref], [claimed(ref.key)])

    assert sum(remembered.get(ref) is not None for ref in refs) <= 4
