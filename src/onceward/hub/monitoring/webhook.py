"""Delivery of doubts to the URL in `hub.on_doubt`, as a webhook in the form of Standard Webhooks.

Theory of operation
===================

A doubt is a row of the table `doubts` (`doubts.py`), which is also the outbox: a row without `delivered_at` and without
`resolved_at` is sent. Its id is the `Webhook-Id`, the same in every attempt, and so is the body.

Every worker sends. The ledger lets one of them send a doubt at a time, and remembers that it was accepted:

    killed                                        after the restart
    before the request was sent                   it is sent
    after it, before the response was recorded    it is sent again, with the same id; the receiver has to recognise it
    after the response was recorded               the ledger replays the response, and nothing is sent

A failed attempt is repeated after 5 seconds, 10, 20 and so on up to an hour, until the receiver accepts the doubt with a
status of 200 to 299, or the doubt is resolved. A redirect is a failure: the URL is the operator's, and nothing else may
choose another one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import httpx

from onceward.core.log_event import log_event
from onceward.errors import Busy, NotDone, OncewardError
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import now_text, time_text
from onceward.ledger.ledger import Ledger

logger = logging.getLogger("onceward.hub")

# The pause after the first failed attempt, which doubles up to the longest one.
RETRY_SECONDS = 5.0
RETRY_SECONDS_MAX = 3600.0
# How often a worker looks for doubts that another one recorded, and for attempts that are due.
POLL_SECONDS = 5.0
# The whole request. A receiver should accept a doubt first and act on it afterwards.
TIMEOUT_SECONDS = 10.0
# Longer than a request takes. The claim of a worker that died on this machine is taken over at once.
LEASE_SECONDS = 30.0
# How long the ledger remembers a delivery, which is recorded in the row a moment later.
RETAIN_SECONDS = 30 * 24 * 3600.0
# Deliveries in one round, so that a receiver that is down does not keep newer doubts waiting for long.
_PAGE = 20
_STATUS_OK, _STATUS_REDIRECT = 200, 300

_DUE = RawStatement("""
    SELECT doubt_id, body, attempts FROM doubts
    WHERE resolved_at IS NULL AND delivered_at IS NULL AND next_attempt_at <= :now
    ORDER BY next_attempt_at, created_at LIMIT :limit
""")
_IS_DUE = RawStatement("""
    SELECT 1 FROM doubts
    WHERE doubt_id = :doubt_id AND resolved_at IS NULL AND delivered_at IS NULL AND next_attempt_at <= :now
""")
_DELIVERED = RawStatement("""
    UPDATE doubts SET delivered_at = :now, attempts = attempts + 1 WHERE doubt_id = :doubt_id AND delivered_at IS NULL
""")
_FAILED = RawStatement("""
    UPDATE doubts SET attempts = attempts + 1, next_attempt_at = :next_attempt_at WHERE doubt_id = :doubt_id
""")


class Delivery(NamedTuple):
    """A doubt to deliver: its id, the body of the request, and the attempts so far."""

    doubt_id: str
    body: str
    attempts: int


class DeliveryRefused(Exception):
    """The receiver responded with another status than 200 to 299."""


class DoubtWebhook:
    """Delivers the doubts in the record of a hub to one URL.

    Args:
        url: The URL, from the operator's configuration only.
        secret: The key of the signature, or empty for requests without a signature.
        database: The hub's database, which has the record.
        ledger: The hub's ledger.
    """

    def __init__(self, url: str, secret: bytes, database: Database, ledger: Ledger) -> None:
        self._url = url
        self._secret = secret
        self._database = database
        self._ledger = ledger
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Deliver now, because a doubt was recorded. Callable from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Deliver until the task is cancelled."""
        self._loop = asyncio.get_running_loop()
        is_failing = False
        async with webhook_client() as client:
            while True:
                self._woken.clear()
                count = 0
                try:
                    count = await self.deliver_due(client)
                    is_failing = False
                except Exception as error:  # noqa: BLE001  # the database or the ledger is down, or a bug
                    if not is_failing:
                        log_event(logger.warning, "on_doubt_paused", reason=str(error), retry_in_seconds=POLL_SECONDS)
                    is_failing = True
                if count < _PAGE:
                    await self._pause()

    async def deliver_due(self, client: httpx.AsyncClient) -> int:
        """Deliver the doubts that are due, at most a page, and return their number.

        Args:
            client: The HTTP client.

        Returns:
            The number of doubts that were due.

        Raises:
            StoreUnavailable: If the database or the ledger did not respond.
        """
        due = [Delivery(*row) for row in await self._rows(_DUE, now=now_text(), limit=_PAGE)]
        for delivery in due:
            await self._deliver(client, delivery)
        return len(due)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _deliver(self, client: httpx.AsyncClient, delivery: Delivery) -> None:
        async def send() -> int:
            # Another worker may have failed, or delivered, since the row was read.
            if not await self._rows(_IS_DUE, doubt_id=delivery.doubt_id, now=now_text()):
                raise NotDone("the doubt is not due any more")
            return await self._send(client, delivery)

        attempt = delivery.attempts + 1
        try:
            await self._ledger.run(
                f"on_doubt:{delivery.doubt_id}",
                send,
                effect="idempotent",
                wait_seconds=0,
                lease_seconds=LEASE_SECONDS,
                retain_seconds=RETAIN_SECONDS,
            )
        except (Busy, NotDone):
            return  # another worker sends it
        except OncewardError:
            raise
        except Exception as error:  # noqa: BLE001  # a failed attempt, whatever the reason, delays only this doubt
            pause = min(RETRY_SECONDS * 2 ** min(delivery.attempts, 30), RETRY_SECONDS_MAX)
            due = time_text(datetime.now(UTC) + timedelta(seconds=pause))
            await self._write(_FAILED, doubt_id=delivery.doubt_id, next_attempt_at=due)
            # Not the URL, because its path or its query may be a secret.
            reason = str(error) if isinstance(error, DeliveryRefused) else f"{type(error).__name__}: {error}"
            log_event(
                logger.warning,
                "on_doubt_delivery_failed",
                doubt_id=delivery.doubt_id,
                attempt=attempt,
                retry_in_seconds=pause,
                reason=reason,
            )
        else:
            # Not if another worker sent it, and this one read its recorded result.
            if await self._write(_DELIVERED, doubt_id=delivery.doubt_id, now=now_text()):
                log_event(logger.info, "on_doubt_delivered", doubt_id=delivery.doubt_id, attempt=attempt)

    async def _send(self, client: httpx.AsyncClient, delivery: Delivery) -> int:
        body = delivery.body.encode()
        headers = signed_headers(delivery.doubt_id, body, self._secret, int(time.time()))
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            client.stream("POST", self._url, content=body, headers=headers) as got,
        ):
            # The body of the response is not read: it may be endless.
            if not _STATUS_OK <= got.status_code < _STATUS_REDIRECT:
                raise DeliveryRefused(f"the receiver responded with the status {got.status_code}")
            return got.status_code

    async def _rows(self, statement: RawStatement, **values: object) -> Sequence[Sequence[Any]]:
        return await asyncio.to_thread(self._database.rows, statement, values)

    async def _write(self, statement: RawStatement, **values: object) -> int:
        """Run a statement, and return the number of changed rows."""

        def work(tx: Transaction) -> int:
            return statement.count(tx, values)

        return await self._database.writer.run(work, ("doubts", str(values["doubt_id"])))


def webhook_client() -> httpx.AsyncClient:
    """Return the HTTP client of deliveries. It follows no redirects: only the operator chooses where a doubt goes."""
    return httpx.AsyncClient(follow_redirects=False, timeout=TIMEOUT_SECONDS)


def signed_headers(webhook_id: str, body: bytes, secret: bytes, seconds: int) -> dict[str, str]:
    """Return the headers of Standard Webhooks: id, timestamp and, with a secret, the signature over both and the body.

    Args:
        webhook_id: The id, the same in every attempt.
        body: The body of the request.
        secret: The key of the signature, or empty.
        seconds: The time of the attempt in seconds since 1970.

    Returns:
        The headers.
    """
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "onceward",
        "Webhook-Id": webhook_id,
        "Webhook-Timestamp": str(seconds),
    }
    if secret:
        signature = hmac.new(secret, f"{webhook_id}.{seconds}.".encode() + body, hashlib.sha256).digest()
        headers["Webhook-Signature"] = f"v1,{base64.b64encode(signature).decode()}"
    return headers
