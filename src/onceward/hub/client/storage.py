"""`hub.storage`: the bytes that principals store, and checks of all stored bytes. Requires scope `admin`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from onceward.errors import HubUnavailable, UnexpectedAnswer
from onceward.hub.client import responses
from onceward.hub.client.connection import LINES, HubConnection
from onceward.hub.client.types import Collected, Damage
from onceward.hub.client.upload import Progress, no_progress

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """The attachments of a principal that have bytes, and the sum of their sizes."""

    principal: str
    stored_bytes: int
    attachment_count: int


@dataclass(frozen=True, slots=True)
class CounterDifference:
    """A counter of stored bytes that differs from the attachments of its principal.

    Attributes:
        counted_bytes: The value of the counter.
        stored_bytes: The sum of the sizes of the attachments.
        counted_attachments: The counted number of attachments.
        attachment_count: The number of attachments.
        corrected: Whether the counter was set right.
    """

    principal: str
    counted_bytes: int
    stored_bytes: int
    counted_attachments: int
    attachment_count: int
    corrected: bool


@dataclass(frozen=True, slots=True)
class StorageCheck:
    """Result of a check: the damaged blobs, and the counters that were not correct."""

    damaged: tuple[Damage, ...]
    wrong_counters: tuple[CounterDifference, ...]


class Storage:
    """Stored bytes of a hub. `Hub` creates it as `hub.storage`. All methods require scope `admin`."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection

    async def usage(self) -> list[StorageUsage]:
        """Return the stored bytes of every principal, by name.

        Returns:
            The principals that have or had attachments.
        """
        return await self._connection.pages("/v1/admin/usage", {}, "usage", _usage)

    async def quota(self) -> int:
        """Return the quota of the hub, `attachments.max_bytes_per_principal`.

        Returns:
            The number of bytes that each principal may store; 0 means no limit.
        """
        query = {"limit": 1}
        return await self._connection.read("/v1/admin/usage", query, lambda body: int(body["max_bytes_per_principal"]))

    async def gc(
        self,
        *,
        dry_run: bool = True,
        grace_seconds: float | None = None,
        batch_size: int | None = None,
        progress: Progress = no_progress,
        idempotency_key: str | None = None,
    ) -> Collected:
        """Delete expired attachments and bytes that nothing needs, or only count them.

        Args:
            dry_run: Only count.
            grace_seconds: The time that a blob is kept after its last upload. By default, the hub's setting.
            batch_size: The number of blobs per batch. By default, the hub's setting.
            progress: Called with the number of files that are done and their total.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The counts.
        """
        sent = {"dry_run": dry_run, "grace_seconds": grace_seconds, "batch_size": batch_size}
        return await long_work(
            self._connection, "/v1/admin/gc-blobs", sent, idempotency_key, progress, responses.collected
        )

    async def check(
        self, *, quarantine: bool = True, progress: Progress = no_progress, idempotency_key: str | None = None
    ) -> StorageCheck:
        """Check the stored bytes of every blob, and the counter of every principal.

        Args:
            quarantine: Whether to move damaged bytes aside, so that they are not served, and to correct counters.
            progress: Called with the number of bytes that are checked and their total.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The damaged blobs and the wrong counters.
        """
        sent = {"quarantine": quarantine}
        return await long_work(self._connection, "/v1/admin/fsck", sent, idempotency_key, progress, _check)


async def long_work(
    connection: HubConnection,
    path: str,
    sent: Mapping[str, object],
    key: str | None,
    progress: Progress,
    decode: Callable[[Any], T],
) -> T:
    """Send an administrative request, and call `progress` with the figures that the hub reports.

    Args:
        connection: The connection to the hub.
        path: The path of the request.
        sent: The body of the request.
        key: The idempotency key. By default, the client generates one.
        progress: Called with the number that is done and the total.
        decode: Converts the result.

    Returns:
        The converted result.
    """
    if progress is no_progress:
        return await connection.work(path, sent, key, decode)
    request = connection.work_request(path, sent, key)
    request.headers["Accept"] = LINES
    lines: list[dict[str, Any]] = []

    def read_line(line: str) -> None:
        content, figures = parse_line(line)
        lines[:] = [content]  # only the last one is needed
        if figures is not None:
            progress(*figures)

    while True:
        lines.clear()
        try:
            response = await connection.send_transfer(request, read_line)
        except HubUnavailable:
            # The connection broke after some lines. The hub goes on, and a request with the same key waits for it.
            if not lines:
                raise
        else:
            # An error, and a hub that reports no progress, respond with one object.
            is_plain = not response.headers.get("Content-Type", "").startswith(LINES)
            return responses.read(response if is_plain else _last_line(response, lines), decode)


def _last_line(response: httpx.Response, lines: Sequence[Mapping[str, Any]]) -> httpx.Response:
    """Return the response that a client without progress would have got."""
    last = lines[0] if lines else {}
    if "result" in last:
        return httpx.Response(response.status_code, json=last["result"], request=response.request)
    if "problem" not in last:
        raise UnexpectedAnswer("the hub ended its response before the result", response.status_code)
    problem, kind = last["problem"], "application/problem+json"
    content, headers = json.dumps(problem).encode(), {"Content-Type": kind}
    return httpx.Response(int(problem["status"]), content=content, headers=headers, request=response.request)


def _usage(body: Any) -> StorageUsage:
    return StorageUsage(**{name: body[name] for name in StorageUsage.__slots__})


def _check(body: Any) -> StorageCheck:
    counters = (
        CounterDifference(**{name: one[name] for name in CounterDifference.__slots__})
        for one in body.get("wrong_counters", ())
    )
    return StorageCheck(tuple(responses.damage_list(body)), tuple(counters))


def parse_line(line: str) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """Parse a line of a report, and return it with its figures: how much is done, and the total.

    Args:
        line: The line.

    Returns:
        The object in the line, and its figures or None.

    Raises:
        UnexpectedAnswer: The line is not such an object.
    """
    try:
        content = json.loads(line)
        found = content.get("progress")
        return content, (int(found["done"]), int(found["total"])) if found else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UnexpectedAnswer(f"the hub sent a line that is not a report of progress: {error}") from error
