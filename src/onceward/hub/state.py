"""Open resources of one hub process: database, ledger, blobs, event feed, streams and turns."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from onceward.http.keyed.operation import idempotency
from onceward.hub.blobs.open import open_blobs
from onceward.hub.chat.service import Turns
from onceward.hub.config.data_folder import ledger, response_codec, upload_rules
from onceward.hub.console.check_ring import CheckRing
from onceward.hub.console.counter_history import CounterHistory
from onceward.hub.db.engine import open_database
from onceward.hub.db.request_key import RequestKey, request_of
from onceward.hub.events.feed import Feed
from onceward.hub.monitoring.doubts import DoubtRecord
from onceward.hub.monitoring.webhook import DoubtWebhook
from onceward.hub.security.auth import principal_of
from onceward.hub.security.revocation import end_revoked_streams
from onceward.hub.security.streams import OpenStreams
from onceward.hub.server import jobs
from onceward.hub.tasks import UploadRules
from onceward.hub.web.metrics import check_totals

if TYPE_CHECKING:
    from onceward.hub.config.config import Config


class HubState:
    """Resources of one hub process: created with the application, opened and closed with its lifespan."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.database = open_database(config.database_url, connections=config.hub.database_connections)
        self.doubts = DoubtRecord(self.database, "whole" if config.hub.log_keys == "whole" else "short")
        self.ledger = ledger(config, on_doubt=self.doubts.record_doubt)
        self.webhook: DoubtWebhook | None = None
        if config.hub.on_doubt:
            secret = config.hub.on_doubt_secret
            self.webhook = DoubtWebhook(config.hub.on_doubt, secret, self.database, self.ledger)
            self.doubts.on_recorded = self.webhook.wake
        self.response_codec = response_codec(config)
        self.feed = Feed(
            self.database,
            heartbeat_seconds=config.events.heartbeat_seconds,
            stall_seconds=config.events.stall_seconds,
        )
        self.database.writer.appended = self.feed.notify
        self.streams = OpenStreams(config.hub.max_streams_per_principal)
        self.blobs = open_blobs(config.blobs_url)
        # Held while the blob store is probed: a probe of an unreachable file server may block its thread forever.
        self.blobs_probe_lock = threading.Lock()
        self.turns = Turns(config, self.database, self.ledger, self.blobs)
        # For the console: the last checks of this process, and the counters of the last hour.
        self.checks = CheckRing()
        self.counters = CounterHistory(check_totals)
        # Tells background threads to stop after their current batch.
        self.stopping = threading.Event()
        self._jobs: list[asyncio.Task[None]] = []

    @property
    def retain_seconds(self) -> float:
        return self.config.retain_seconds

    @property
    def upload_rules(self) -> UploadRules:
        return upload_rules(self.config)

    async def open(self) -> None:
        """Start the background jobs."""
        self.ledger.purge_every(jobs.LEDGER_SECONDS)
        # Before the first request, so that the first counts are part of the history.
        await asyncio.to_thread(self.counters.sample)
        await self.turns.start()
        background = [
            ("revocation", end_revoked_streams(self.feed, self.streams, self.database)),
            ("console-counters", self.counters.run()),
            ("former-entries", jobs.warn_of_former_entries(self.config, self.ledger)),
            *([("on-doubt", self.webhook.run())] if self.webhook is not None else []),
            *jobs.periodic(self),
        ]
        self._jobs = [asyncio.create_task(job, name=name) for name, job in background]

    async def stop_streams(self) -> None:
        """End every stream. Its last message contains the id to resume after."""
        self.turns.stop_streams()
        await self.feed.stop()

    async def close(self) -> None:
        self.stopping.set()
        for job in self._jobs:
            job.cancel()
        for job in self._jobs:
            with contextlib.suppress(asyncio.CancelledError):
                await job
        await self.turns.stop()
        await self.feed.stop()
        self.ledger.close()
        self.database.close()


def hub_of(connection: HTTPConnection) -> HubState:
    hub: HubState = connection.app.state.hub
    return hub


def request_key_of(connection: HTTPConnection) -> RequestKey | None:
    """Return the request key that marks the rows of this request."""
    operation = idempotency(connection)
    return request_of(principal_of(connection.scope), operation.key, operation.began_at, operation.attempt)
