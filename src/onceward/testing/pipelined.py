"""Store wrapper that commits on the pipeline: it encodes and sends each batch, as an event loop does."""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from typing import Any, cast

from onceward.core.claim import Write, WriteResult
from onceward.store.dispatch.inflight import BatchEncoder, encoder_of

# The longest wait for more results, longer than a test server pauses. After it, `finish` blocks for the rest.
SECONDS = 30.0


class PipelinedStore:
    """Wrapper that commits the batches of a store on the pipeline, to run the contract that way.

    A batch that cannot be sent at once is committed with the blocking `commit` of the store. All other methods are
    those of the store.

    Args:
        store: A store that has `encode_batch`.

    Attributes:
        pipelined: The number of batches that were sent on the pipeline.
        blocked: The number of batches, except empty ones, that were committed with the blocking `commit`.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._encoder = cast("BatchEncoder", encoder_of(store) or store)
        self.pipelined = 0
        self.blocked = 0

    @property
    def flown(self) -> int:
        """The earlier name of `pipelined`."""
        return self.pipelined

    @property
    def grounded(self) -> int:
        """The earlier name of `blocked`."""
        return self.blocked

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Send a batch and wait for its results.

        Args:
            writes: A batch, with at most one write of each key.

        Returns:
            One result for each write, in the order of the writes.

        Raises:
            StoreUnavailable: If the writes may or may not have been applied.
            BatchFailed: If nothing was applied because of one of the writes.
        """
        encoded = self._encoder.encode_batch()
        encoded.add(writes)
        sent_batch = encoded.send()
        if sent_batch is None:
            self.blocked += bool(writes)
            results: list[WriteResult] = self._store.commit(writes)
            return results
        self.pipelined += 1
        with selectors.DefaultSelector() as selector:
            selector.register(sent_batch.fileno(), selectors.EVENT_READ)
            while not sent_batch.must_block and selector.select(SECONDS) and not sent_batch.poll():
                pass
        return sent_batch.finish()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


# The earlier name of `PipelinedStore`.
FlownStore = PipelinedStore
