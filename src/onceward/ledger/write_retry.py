"""Retries of one write under the same write id, until the store has decided it or the time is up."""

from __future__ import annotations

import contextlib

from onceward.core.claim import Begin, Write, WriteResult
from onceward.core.key import short_key
from onceward.errors import OncewardError, StoreClosed, StoreUnavailable
from onceward.ledger.transaction import refuse_inside_bound
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.queue import QueuedWrite, give_back

# Pauses between retries of a write to a store that fails immediately.
PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 0.5


class RetryingWriter:
    """Sender of a ledger's writes to its dispatcher, with retries."""

    def __init__(self, dispatcher: Batcher) -> None:
        self.dispatcher = dispatcher

    async def write(self, write: Write, seconds: float) -> WriteResult:
        """Repeat a write under its id until it is decided or the time is up.

        A `begin` is not repeated if the store refuses it permanently or its entry is locked.
        """
        refuse_inside_bound()
        deadline = self.dispatcher.monotonic() + seconds
        pause = PAUSE_SECONDS_MIN
        queued = self.dispatcher.write(write)
        try:
            while True:
                try:
                    result = await queued
                    if not result.locked or isinstance(write, Begin):
                        return result
                    if self.dispatcher.monotonic() + pause > deadline:
                        raise StoreUnavailable(  # noqa: TRY301
                            f"the entry of {short_key(write.key)!r} is still locked by another transaction"
                        )
                except StoreUnavailable as error:
                    # Before the effect (a begin), a permanent refusal is reported at once. After the effect, retry: a
                    # failover may end the refusal.
                    refused = isinstance(write, Begin) and not error.retryable
                    if refused or self.dispatcher.monotonic() + pause > deadline:
                        queued.abandon()
                        raise
                    if not queued.done:
                        continue
                await self.dispatcher.sleep(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
                queued = self.dispatcher.write(write)
        except (OncewardError, GeneratorExit):
            raise
        except BaseException:
            self._abandon_write(write, queued)
            raise

    def _abandon_write(self, write: Write, queued: QueuedWrite) -> None:
        """Clean up for a caller that was interrupted: give back its claim, or record what it was about to record."""
        if not queued.done:
            return  # still in flight; the batcher handles the result
        with contextlib.suppress(StoreClosed):
            if isinstance(write, Begin):
                result = None if queued.failed else queued.result()
                self.dispatcher.call(
                    lambda store: give_back(store, write, result, notify_doubt=self.dispatcher.notify_doubt)
                )
            elif queued.failed:
                self.dispatcher.call(lambda store: self.dispatcher.notify_doubt(write, store.commit([write])[0]))
