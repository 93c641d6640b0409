"""Delivery of one write: repeated under its one id until the store has decided it, or the time is up."""

from __future__ import annotations

import contextlib

from onceward.bound import refuse_inside_bound
from onceward.core.claim import Answer, Begin, Write
from onceward.core.key import shown
from onceward.errors import OncewardError, StoreClosed, StoreUnavailable
from onceward.store.batch import Batcher
from onceward.store.queue import Sent, give_back

# Pauses between repeats of one write to a store that fails at once.
PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 0.5


class Delivery:
    """The way of a ledger's writes to its store."""

    def __init__(self, line: Batcher) -> None:
        self.line = line

    async def write(self, write: Write, seconds: float) -> Answer:
        """Repeat one write, under its one id, until it is decided or the time is up."""
        refuse_inside_bound()
        deadline = self.line.monotonic() + seconds
        pause = PAUSE_SECONDS_MIN
        sent = self.line.write(write)
        try:
            while True:
                try:
                    answer = await sent
                    if not answer.locked or isinstance(write, Begin):
                        return answer
                    if self.line.monotonic() + pause > deadline:
                        raise StoreUnavailable(f"the entry of {shown(write.key)!r} stays locked by another transaction")  # noqa: TRY301
                except StoreUnavailable:
                    if self.line.monotonic() + pause > deadline:
                        sent.abandon()
                        raise
                    if not sent.done:
                        continue
                await self.line.sleep(pause)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
                sent = self.line.write(write)
        except (OncewardError, GeneratorExit):
            raise
        except BaseException:
            self._leave(write, sent)
            raise

    def _leave(self, write: Write, sent: Sent) -> None:
        """The caller goes away in the middle: a claim it may have got is given back, and what it had to record is."""
        if not sent.done:
            return  # on its way; the batcher knows what to do with the answer
        with contextlib.suppress(StoreClosed):
            if isinstance(write, Begin):
                answer = None if sent.failed else sent.result()
                self.line.call(lambda store: give_back(store, write, answer, notice=self.line.notice))
            elif sent.failed:
                self.line.call(lambda store: self.line.notice(write, store.commit([write])[0]))
