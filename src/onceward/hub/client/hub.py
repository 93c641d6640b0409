"""The hub as an object: one method for each thing that can be asked of it.

What changes something carries an idempotency key, the same on every try, so that it happens once, however often it is
sent. Whoever wants to repeat a call later, or after a restart, passes an `idempotency_key` of their own.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, Unpack

import httpx

from onceward.errors import HubUnavailable
from onceward.http.events import is_event_stream
from onceward.hub.client import answers
from onceward.hub.client.chat import Chat
from onceward.hub.client.claims import Claims
from onceward.hub.client.downloading import download
from onceward.hub.client.following import Following, OnGap, check_cursor, check_on_gap, lost
from onceward.hub.client.ingest import Ingest
from onceward.hub.client.uploading import Progress, Source, no_progress, upload
from onceward.hub.client.values import (
    About,
    Attached,
    Attachment,
    Backfilled,
    Collected,
    Damage,
    Downloaded,
    Event,
    EventPage,
    Message,
    MessageMade,
    Readiness,
    Task,
    TaskAttachment,
    Topic,
    TopicMade,
)
from onceward.hub.client.wire import PAGE_MAX, SECONDS_MAX, HubOptions, Wire, as_json, path_of
from onceward.hub.new_file import new_file
from onceward.terms import check_seconds

# Three heartbeats of a hub as it comes: one may be late, a second lost on the way.
SILENCE_SECONDS = 45.0


class Hub:
    """`async with Hub("http://127.0.0.1:8787", token="…") as hub:`. Raises what `onceward.errors` has, nothing else,
    save for an `OSError` of a file on this side.
    """

    def __init__(self, url: str, token: str | None = None, **options: Unpack[HubOptions]) -> None:
        self._wire = Wire(url, token, options)
        self.chat = Chat(self._wire)
        self.claims = Claims(self._wire)
        self.ingest = Ingest(self._wire)

    def __repr__(self) -> str:
        return f"Hub({self._wire.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; whoever still follows is told `StoreClosed`."""
        await self._wire.aclose()

    # Topics and messages.

    async def create_topic(self, title: str, *, idempotency_key: str | None = None) -> TopicMade:
        return await self._wire.change("POST", "/api/v1/topics", {"title": title}, idempotency_key, answers.topic_made)

    async def topics(self, *, limit: int | None = None) -> list[Topic]:
        """The newest first: all of them, or at most `limit`."""
        return await self._wire.pages("/api/v1/topics", {}, "topics", answers.topic, limit)

    async def topic(self, topic_id: str) -> Topic:
        return await self._wire.look(_path(topic_id), {}, answers.topic_found)

    async def post_message(
        self, topic_id: str, sender: str, content: str, *, idempotency_key: str | None = None
    ) -> MessageMade:
        sent = {"sender": sender, "content": content}
        return await self._wire.change(
            "POST", _path(topic_id, "/messages"), sent, idempotency_key, answers.message_made
        )

    async def messages(self, topic_id: str, *, limit: int | None = None) -> list[Message]:
        """The newest first: all of them, or at most `limit`."""
        return await self._wire.pages(_path(topic_id, "/messages"), {}, "messages", answers.message, limit)

    # Attachments. Their `key` is a name within the kind.

    async def attach(
        self,
        topic_id: str,
        kind: str,
        value_json: Mapping[str, object],
        *,
        key: str | None = None,
        dedupe_key: str | None = None,
        source_message_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Attached:
        """Add an attachment, or find the one that is there: what it is follows from its kind, key and dedupe key."""
        sent = _attachment(kind, value_json, key, dedupe_key, source_message_id)
        return await self._wire.change("POST", _path(topic_id, "/attachments"), sent, idempotency_key, answers.attached)

    async def update_attachment(
        self,
        topic_id: str,
        kind: str,
        value_json: Mapping[str, object],
        *,
        dedupe_key: str,
        key: str | None = None,
        source_message_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Attached:
        """Give the attachment that is there another value; `NotFound` when there is none."""
        sent = _attachment(kind, value_json, key, dedupe_key, source_message_id)
        return await self._wire.change("PUT", _path(topic_id, "/attachments"), sent, idempotency_key, answers.attached)

    async def find_attachment(
        self, topic_id: str, kind: str, dedupe_key: str, *, key: str | None = None
    ) -> Attachment | None:
        """The one attachment that these name, if it is there."""
        found = await self.attachments(topic_id, kind=kind, key=key or "", dedupe_key=dedupe_key, limit=1)
        return found[0] if found else None

    async def attachments(
        self,
        topic_id: str,
        *,
        kind: str | None = None,
        key: str | None = None,
        dedupe_key: str | None = None,
        limit: int | None = None,
    ) -> list[Attachment]:
        """The newest first: all of them, or at most `limit`. The empty key finds those without one."""
        asked = {"kind": kind, "key": key, "dedupe_key": dedupe_key}
        path = _path(topic_id, "/attachments")
        return await self._wire.pages(path, asked, "attachments", answers.attachment, limit)

    # Events.

    async def events(self, after: int = 0, *, limit: int = 100, topic_id: str | None = None) -> EventPage:
        """A page of the log. Events that were asked for and are no longer kept are its `gap`."""
        asked = {"after": check_cursor(after), "limit": limit, "topic_id": topic_id}
        return await self._wire.look("/api/v1/events", asked, answers.event_page)

    async def all_events(
        self, after: int = 0, *, topic_id: str | None = None, on_gap: OnGap = "raise"
    ) -> AsyncGenerator[Event, None]:
        """Every event from the cursor to the end of the log; `EventsLost` when some of them are no longer kept."""
        more, passes_over = True, check_on_gap(on_gap) == "continue"
        while more:
            page = await self.events(after, limit=PAGE_MAX, topic_id=topic_id)
            if page.gap is not None and not passes_over:
                raise lost(page.gap)
            for event in page.events:
                yield event
            after, more = page.next_after, page.has_more

    def follow(
        self,
        after: int | None = None,
        *,
        topic_id: str | None = None,
        log_epoch: str | None = None,
        on_gap: OnGap = "raise",
        silence_seconds: float = SILENCE_SECONDS,
    ) -> Following:
        """Every event behind the cursor, once and in order, for ever; without a cursor, from now on: from the first
        `anext`, or from the beginning of `async with hub.follow() as following:`.

        The first connection is made within `deadline_seconds`, or `HubUnavailable` is raised; later ones are tried until
        the hub is back. A connection that says nothing for `silence_seconds` is given up. Raises `EventsLost` when
        events behind the cursor are no longer kept (with `on_gap="continue"` they are passed over), and `OtherLog` when
        the log is not the one of the cursor, or of `log_epoch`.
        """
        check_seconds("silence_seconds", silence_seconds, SECONDS_MAX, positive=True)
        connect = functools.partial(self._stream, topic_id, silence_seconds)
        return Following(connect, after, log_epoch, on_gap)

    # Tasks, and what is attached to them.

    async def create_task(
        self, title: str, *, task_id: str | None = None, spec_id: str | None = None, idempotency_key: str | None = None
    ) -> Task:
        """`AlreadyThere` when the id is taken; without one it gets its own."""
        sent = {"id": task_id, "title": title, "spec_id": spec_id}
        return await self._wire.change("POST", "/v1/tasks", sent, idempotency_key, answers.task)

    async def tasks(self, *, limit: int | None = None) -> list[Task]:
        """The newest first: all of them, or at most `limit`."""
        return await self._wire.pages("/v1/tasks", {}, "tasks", answers.task, limit)

    async def task(self, task_id: str) -> Task:
        return await self._wire.look(_task(task_id), {}, answers.task)

    async def delete_task(self, task_id: str) -> None:
        """With everything that is attached to it. Sent once: after `HubUnavailable` it may be gone or not."""
        await self._wire.change("DELETE", _task(task_id), None, None, answers.nothing)

    async def attach_file(
        self,
        task_id: str,
        file: Source,
        kind: str,
        *,
        filename: str | None = None,
        reject_media_type_mismatch: bool | None = None,
        progress: Progress = no_progress,
        idempotency_key: str | None = None,
        **about: Unpack[About],
    ) -> TaskAttachment:
        """Attach the bytes of a file: a path, or an open binary file, read from where it stands.

        It is read twice, and again for each further try; what cannot be read again is copied into a temporary file.
        """
        fields = _fields(kind, about, reject_media_type_mismatch)
        path = _task(task_id, "/attachments")
        return await upload(self._wire, path, file, fields, filename, idempotency_key, progress)

    async def attach_link(
        self,
        task_id: str,
        kind: str,
        *,
        external_url: str | None = None,
        repo_path: str | None = None,
        idempotency_key: str | None = None,
        **about: Unpack[About],
    ) -> TaskAttachment:
        """Attach a URL or a path in a repository, one of the two."""
        sent: dict[str, object] = {"kind": kind, "external_url": external_url, "repo_path": repo_path, **about}
        sent["labels"], sent["meta"] = list(about.get("labels", ())), dict(about.get("meta", {}))
        path = _task(task_id, "/attachments/link")
        return await self._wire.change("POST", path, sent, idempotency_key, answers.task_attachment)

    async def task_attachments(self, task_id: str, *, limit: int | None = None) -> list[TaskAttachment]:
        """The newest first: all of them, or at most `limit`."""
        path = _task(task_id, "/attachments")
        return await self._wire.pages(path, {}, "attachments", answers.task_attachment, limit)

    async def attachment(self, attachment_id: str) -> TaskAttachment:
        return await self._wire.look(_attached(attachment_id), {}, answers.task_attachment)

    async def replace_labels(
        self, attachment_id: str, labels: Iterable[str], *, idempotency_key: str | None = None
    ) -> TaskAttachment:
        sent = {"labels": list(labels)}
        path = _attached(attachment_id, "/labels")
        return await self._wire.change("PUT", path, sent, idempotency_key, answers.task_attachment)

    async def download(
        self,
        attachment_id: str,
        to: str | PathLike[str] | BinaryIO,
        *,
        overwrite: bool = False,
        progress: Progress = no_progress,
    ) -> Downloaded:
        """The bytes of an attachment, into an open binary file, or into a new one, which is there whole or not at all.

        A line that breaks is resumed; the sha256 is checked. A file that is there is `AlreadyThere`, or overwritten.
        """
        path = _attached(attachment_id, "/content")
        if not isinstance(to, str | PathLike):
            return await download(self._wire, path, to, progress)
        with new_file(Path(to), overwrite=overwrite) as file:
            return await download(self._wire, path, file, progress)

    async def remove_attachment(self, attachment_id: str) -> None:
        """Sent once: after `HubUnavailable` it may be gone or not."""
        await self._wire.change("DELETE", _attached(attachment_id), None, None, answers.nothing)

    # For an admin.

    async def gc_blobs(
        self,
        *,
        dry_run: bool = True,
        grace_seconds: float | None = None,
        batch_size: int | None = None,
        idempotency_key: str | None = None,
    ) -> Collected:
        """Collect what nothing needs any more, or only count it."""
        sent = {"dry_run": dry_run, "grace_seconds": grace_seconds, "batch_size": batch_size}
        return await self._wire.work("/v1/admin/gc-blobs", sent, idempotency_key, answers.collected)

    async def fsck(self, *, quarantine: bool = True, idempotency_key: str | None = None) -> list[Damage]:
        """The blobs that are not what they should be."""
        return await self._wire.work("/v1/admin/fsck", {"quarantine": quarantine}, idempotency_key, answers.damage_list)

    async def backfill_spec_attachments(self, *, idempotency_key: str | None = None) -> Backfilled:
        """Make an attachment of each task's `spec_id`, once."""
        return await self._wire.work("/v1/admin/backfill-spec-attachments", {}, idempotency_key, answers.backfilled)

    # The hub itself. Asked once: whoever asks wants to know how it is now.

    async def healthz(self) -> bool:
        """Whether the hub answers."""
        try:
            return (await self._wire.probe("/healthz")).is_success
        except HubUnavailable:
            return False

    async def readyz(self) -> Readiness:
        """Whether the hub and its stores answer."""
        try:
            response = await self._wire.probe("/readyz")
        except HubUnavailable:
            return Readiness(ready=False, checks={"hub": "no answer"})
        try:
            return answers.readiness(response.json())
        except (KeyError, TypeError, ValueError) as error:
            raise answers.unexpected(response) from error

    async def _stream(self, topic_id: str | None, silence_seconds: float, after: int | None) -> httpx.Response:
        request = self._wire.get("/api/v1/events/stream", {"topic_id": topic_id})
        request.headers.update({"Accept": "text/event-stream", "Accept-Encoding": "identity"})
        if after is not None:
            request.headers["Last-Event-ID"] = str(after)
        timeout = httpx.Timeout(self._wire.try_seconds, read=silence_seconds)
        request.extensions = {**request.extensions, "timeout": timeout.as_dict()}
        return await self._wire.open(request, _is_stream)


def _is_stream(response: httpx.Response) -> bool:
    return response.is_success and is_event_stream(response.headers.get("Content-Type", "").encode())


def _path(topic_id: str, below: str = "") -> str:
    return path_of("/api/v1/topics", "topic", topic_id, below)


def _attachment(
    kind: str, value_json: Mapping[str, object], key: str | None, dedupe_key: str | None, source_message_id: str | None
) -> dict[str, object]:
    return {
        "kind": kind,
        "value_json": dict(value_json),
        "key": key,
        "dedupe_key": dedupe_key,
        "source_message_id": source_message_id,
    }


def _task(task_id: str, below: str = "") -> str:
    return path_of("/v1/tasks", "task", task_id, below)


def _attached(attachment_id: str, below: str = "") -> str:
    return path_of("/v1/attachments", "attachment", attachment_id, below)


def _fields(kind: str, about: About, reject_mismatch: bool | None) -> list[tuple[str, str]]:
    """What is said of a file, in the form of an upload. What is not said is not sent."""
    said = {"kind": kind, "title": about.get("title"), "expires_at": about.get("expires_at")}
    said["media_type"] = about.get("media_type")
    if meta := about.get("meta"):
        said["meta"] = as_json(meta).decode()
    if reject_mismatch is not None:
        said["reject_media_type_mismatch"] = "true" if reject_mismatch else "false"
    labels = [("labels[]", label) for label in about.get("labels", ())]
    return [(name, value) for name, value in said.items() if value is not None] + labels
