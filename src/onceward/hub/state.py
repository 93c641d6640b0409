"""What one hub process holds: its database, its ledger and its feed of events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from onceward.blobs.open import open_blobs
from onceward.db.engine import open_database
from onceward.db.request import RequestKey, request_of
from onceward.events.feed import Feed
from onceward.http.operation import idempotency
from onceward.hub import jobs
from onceward.hub.auth import principal_of
from onceward.hub.data import ledger, response_form, upload_rules
from onceward.hub.streams import OpenStreams
from onceward.hub.turns import Turns
from onceward.hub.visitors import watch
from onceward.tasks import UploadRules

if TYPE_CHECKING:
    from onceward.hub.config import Config


class Hub:
    """Made with the application; opened and closed with its lifespan."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.database = open_database(config.database_url)
        self.ledger = ledger(config)
        self.response_form = response_form(config)
        self.feed = Feed(
            self.database,
            heartbeat_seconds=config.events.heartbeat_seconds,
            stall_seconds=config.events.stall_seconds,
        )
        self.streams = OpenStreams(config.hub.max_streams_per_principal)
        self.blobs = open_blobs(config.blobs_url)
        # Held by who looks whether they are there: a folder on a server that is gone may keep its thread for ever.
        self.blobs_looked_at = threading.Lock()
        self.turns = Turns(config, self.database, self.ledger, self.blobs, self.feed.hint)
        # Set for threads that work beside the requests, and end between two of their steps.
        self.stopping = threading.Event()
        self._jobs: list[asyncio.Task[None]] = []

    @property
    def retain_seconds(self) -> float:
        return self.config.retain_seconds

    @property
    def upload_rules(self) -> UploadRules:
        return upload_rules(self.config)

    async def open(self) -> None:
        """Begin what goes on beside the requests."""
        self.ledger.purge_every(jobs.LEDGER_SECONDS)
        await self.turns.start()
        beside = [
            ("visitors", watch(self.feed, self.streams, self.database)),
            ("former-entries", jobs.warn_of_former_entries(self.config, self.ledger)),
            *jobs.periodic(self),
        ]
        self._jobs = [asyncio.create_task(job, name=name) for name, job in beside]

    async def stop_streams(self) -> None:
        """End every stream with the id to resume from."""
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


def hub_of(connection: HTTPConnection) -> Hub:
    hub: Hub = connection.app.state.hub
    return hub


def request_key_of(connection: HTTPConnection) -> RequestKey | None:
    """What the rows of this request are marked with."""
    operation = idempotency(connection)
    return request_of(principal_of(connection.scope), operation.key, operation.began_at, operation.attempt)
