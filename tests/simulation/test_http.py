"""Clients, handlers, processes and the store fail as a seed decides: guarantees hold, and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.http_scenario import simulate

from onceward.http.keyed.admission import Admission, KeyedRequest
from onceward.http.response.asgi_exchange import AsgiExchange
from onceward.http.response.recorded_stream import RecordedStream
from onceward.http.response.recorder import ResponseRecorder
from onceward.http.stored.codec import HEAD_SEQ

SEEDS = 100
# Every planted bug is found long before.
SEEDS_MAX = 3000


@pytest.mark.parametrize("block", range(5))
def test_every_guarantee_is_kept(block: int) -> None:
    broken = [report for seed in range(block * SEEDS, (block + 1) * SEEDS) if (report := simulate(seed)).broken]

    assert not broken, "\n".join(f"{report.seed}: {report.broken}" for report in broken)


Plant = Callable[[pytest.MonkeyPatch], None]


def a_lost_claim_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    finish = ResponseRecorder.finish

    async def careless(self: ResponseRecorder, retain_seconds: float | None) -> bool:
        await finish(self, retain_seconds)
        return True

    patch.setattr(ResponseRecorder, "finish", careless)


def a_lying_length_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AsgiExchange, "_has_wrong_length", False)


def a_joined_body_ends_by_its_length(patch: pytest.MonkeyPatch) -> None:
    async def head(self: RecordedStream) -> Any:
        first = await self._ledger.chunks(self._entry, 0, 1)
        self._after = HEAD_SEQ
        return self._codec.decode_head(self._entry, first[0]) if first else None

    patch.setattr(RecordedStream, "head", head)


def what_may_not_be_repeated_is(patch: pytest.MonkeyPatch) -> None:
    async def failed(self: Admission, asked: KeyedRequest, claim: Any, note: str) -> None:
        await self.ledger.fail(claim, note, asked.rule.retain_seconds)

    patch.setattr(Admission, "failed", failed)


def the_end_is_passed_on_before_it_is_settled(patch: pytest.MonkeyPatch) -> None:
    finish = AsgiExchange._finish

    async def hasty(self: AsgiExchange, message: Any) -> None:
        await self._pass_start()
        await self._pass(message)
        self.gone = True
        await finish(self, message)

    patch.setattr(AsgiExchange, "_finish", hasty)


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (a_lost_claim_goes_unnoticed, 0),
        (a_lying_length_is_believed, 0),
        # Rare: the search starts near a seed that found it.
        (a_joined_body_ends_by_its_length, 650),
        (what_may_not_be_repeated_is, 0),
        (the_end_is_passed_on_before_it_is_settled, 0),
    ],
)
def test_a_planted_bug_is_found(plant: Plant, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    assert any(simulate(seed).broken for seed in range(first, first + SEEDS_MAX)), "nobody noticed"
