"""The asynchronous client of a hub, with one method for each operation.

A request that writes carries an idempotency key, the same on every retry, so that it has one effect however often it is
sent. To repeat a call later, or after a restart, pass your own `idempotency_key`.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, Unpack

import httpx

from onceward.errors import HubUnavailable
from onceward.http.response.sse import is_event_stream
from onceward.hub.atomic_file import new_file
from onceward.hub.client import responses
from onceward.hub.client.audit import Audit
from onceward.hub.client.chat import Chat
from onceward.hub.client.claims import Claims
from onceward.hub.client.connection import PAGE_MAX, SECONDS_MAX, HubConnection, HubOptions, as_json, path_of
from onceward.hub.client.download import download
from onceward.hub.client.follow import Following, OnGap, check_cursor, check_on_gap, lost
from onceward.hub.client.ingest import Ingest
from onceward.hub.client.storage import Storage, long_work
from onceward.hub.client.types import (
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
from onceward.hub.client.upload import Progress, Source, no_progress, upload
from onceward.ledger.terms import check_seconds

# Three heartbeats of a hub with default settings: one may be lost, and the next one may be late.
SILENCE_SECONDS = 45.0


class Hub:
    """Asynchronous client of a hub: `async with Hub("http://127.0.0.1:8787", token="…") as hub:`.

    Requests are retried until `deadline_seconds`. Deletes are not: they are sent once. Besides the exceptions that are
    listed with a method, every method can raise these:

    * `HubUnavailable`: the hub did not respond in time. The request may or may not have been carried out.
    * `Unauthorized`, `Forbidden`: the token is missing or not valid, or does not have the required scope.
    * `InvalidInput`, `TooLarge`: the hub refused a value.
    * `UnexpectedAnswer`: the response is not one of a hub of this version.
    * `StoreClosed`: the client was closed.

    A method with an `idempotency_key` can also raise these:

    * `InvalidKey`: the key is not 1 to 255 visible ASCII characters.
    * `KeyReused`: the key was already used with a different request.
    * `Busy`: an earlier request with this key is still running.
    * `InDoubt`, `OutcomeNotKept`: the outcome of an earlier request with this key is unknown, or was not stored.

    Args:
        url: The URL of the hub, with http or https.
        token: The access token. A hub without tokens accepts requests from its own machine without one.
        options: Timeouts and the transport; see `HubOptions`.

    Attributes:
        chat: Operations on messages and turns, a `Chat`.
        audit: The audit log, an `Audit`.
        claims: Operations on claims, a `Claims`.
        ingest: Operations on ingested entries, an `Ingest`.
        storage: Usage and checks of stored bytes, a `Storage`.

    Raises:
        InvalidOption: The URL, the token or an option is not valid.
    """

    def __init__(self, url: str, token: str | None = None, **options: Unpack[HubOptions]) -> None:
        self._connection = HubConnection(url, token, options)
        self.chat = Chat(self._connection)
        self.audit = Audit(self._connection)
        self.claims = Claims(self._connection)
        self.ingest = Ingest(self._connection)
        self.storage = Storage(self._connection)

    def __repr__(self) -> str:
        return f"Hub({self._connection.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections. An open `follow` then raises `StoreClosed`."""
        await self._connection.aclose()

    # Topics and messages.

    async def create_topic(self, title: str, *, idempotency_key: str | None = None) -> TopicMade:
        """Create a topic.

        Args:
            title: The title of the topic.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The topic and the id of its event.
        """
        return await self._connection.change(
            "POST", "/api/v1/topics", {"title": title}, idempotency_key, responses.topic_made
        )

    async def topics(self, *, limit: int | None = None) -> list[Topic]:
        """List topics, newest first.

        Args:
            limit: The maximum number to return. Without it, all topics.

        Returns:
            The topics, from as many pages as needed.
        """
        return await self._connection.pages("/api/v1/topics", {}, "topics", responses.topic, limit)

    async def topic(self, topic_id: str) -> Topic:
        """Return a topic.

        Args:
            topic_id: The id of the topic.

        Returns:
            The topic.

        Raises:
            NotFound: The topic does not exist.
        """
        return await self._connection.read(_path(topic_id), {}, responses.topic_found)

    async def post_message(
        self, topic_id: str, sender: str, content: str, *, idempotency_key: str | None = None
    ) -> MessageMade:
        """Post a message to a topic.

        Args:
            topic_id: The id of the topic.
            sender: The name of the sender.
            content: The text of the message.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The message and the id of its event.

        Raises:
            NotFound: The topic does not exist.
        """
        sent = {"sender": sender, "content": content}
        return await self._connection.change(
            "POST", _path(topic_id, "/messages"), sent, idempotency_key, responses.message_made
        )

    async def messages(self, topic_id: str, *, limit: int | None = None) -> list[Message]:
        """List the messages of a topic, newest first.

        Args:
            topic_id: The id of the topic.
            limit: The maximum number to return. Without it, all messages.

        Returns:
            The messages, from as many pages as needed.

        Raises:
            NotFound: The topic does not exist.
        """
        return await self._connection.pages(_path(topic_id, "/messages"), {}, "messages", responses.message, limit)

    # Attachments of topics. Their `key` is a name within the kind.

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
        """Attach a value to a topic, or find the existing attachment with the same kind, key and dedupe key.

        Args:
            topic_id: The id of the topic.
            kind: The kind of attachment.
            value_json: The value, as a JSON object.
            key: A name within the kind.
            dedupe_key: Attachments with the same kind, key and dedupe key are the same. By default, the canonical JSON
                of the value is compared.
            source_message_id: The id of the message that the attachment comes from.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The attachment, and the id of its event. The id is None if the attachment existed before.

        Raises:
            NotFound: The topic does not exist.
            InvalidInput: A field is not valid, or the source message is not a message of the topic.
        """
        sent = _attachment(kind, value_json, key, dedupe_key, source_message_id)
        return await self._connection.change(
            "POST", _path(topic_id, "/attachments"), sent, idempotency_key, responses.attached
        )

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
        """Change the value of an existing attachment of a topic.

        Args:
            topic_id: The id of the topic.
            kind: The kind of attachment.
            value_json: The new value, as a JSON object.
            dedupe_key: The dedupe key of the attachment.
            key: The name within the kind, if the attachment has one.
            source_message_id: The id of the message that the attachment comes from.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The attachment, and the id of its event. The id is None if nothing changed.

        Raises:
            NotFound: The topic or the attachment does not exist.
        """
        sent = _attachment(kind, value_json, key, dedupe_key, source_message_id)
        return await self._connection.change(
            "PUT", _path(topic_id, "/attachments"), sent, idempotency_key, responses.attached
        )

    async def find_attachment(
        self, topic_id: str, kind: str, dedupe_key: str, *, key: str | None = None
    ) -> Attachment | None:
        """Find the attachment of a topic with this kind, key and dedupe key.

        Args:
            topic_id: The id of the topic.
            kind: The kind of attachment.
            dedupe_key: The dedupe key of the attachment.
            key: The name within the kind, if the attachment has one.

        Returns:
            The attachment, or None if it does not exist.

        Raises:
            NotFound: The topic does not exist.
        """
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
        """List the attachments of a topic, newest first.

        Args:
            topic_id: The id of the topic.
            kind: Only attachments of this kind.
            key: Only attachments with this key. The empty key selects those without one.
            dedupe_key: Only attachments with this dedupe key.
            limit: The maximum number to return. Without it, all attachments.

        Returns:
            The attachments, from as many pages as needed.

        Raises:
            NotFound: The topic does not exist.
        """
        query = {"kind": kind, "key": key, "dedupe_key": dedupe_key}
        path = _path(topic_id, "/attachments")
        return await self._connection.pages(path, query, "attachments", responses.attachment, limit)

    # Events.

    async def events(self, after: int = 0, *, limit: int = 100, topic_id: str | None = None) -> EventPage:
        """Read a page of the event log, oldest first.

        Args:
            after: The cursor: the id of the last event that you have.
            limit: The maximum number of events in the page.
            topic_id: Only events of this topic.

        Returns:
            The page. Its `gap` is set if events after the cursor have been deleted by retention.

        Raises:
            InvalidInput: The cursor or the limit is not valid.
        """
        query = {"after": check_cursor(after), "limit": limit, "topic_id": topic_id}
        return await self._connection.read("/api/v1/events", query, responses.event_page)

    async def all_events(
        self, after: int = 0, *, topic_id: str | None = None, on_gap: OnGap = "raise"
    ) -> AsyncGenerator[Event, None]:
        """Iterate over the event log from the cursor to its end.

        Args:
            after: The cursor: the id of the last event that you have.
            topic_id: Only events of this topic.
            on_gap: `"raise"`, or `"continue"` to skip events that retention has deleted.

        Yields:
            Every event, oldest first.

        Raises:
            EventsLost: Events after the cursor have been deleted, and `on_gap` is `"raise"`.
            InvalidOption: `on_gap` is not one of the two.
            InvalidInput: The cursor is not valid.
        """
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
        """Follow the event log: every event after the cursor, once and in order, without end.

        The first connection must succeed within `deadline_seconds`, or the iteration raises `HubUnavailable`. Later
        connections are retried until the hub is back. The iteration also raises `EventsLost` if events after the cursor
        have been deleted, and `OtherLog` if the cursor or `log_epoch` belongs to another log.

        Args:
            after: The cursor: the id of the last event that you have. Without it, events from now on: from the first
                `anext`, or from the start of `async with hub.follow() as following:`.
            topic_id: Only events of this topic.
            log_epoch: The `log_epoch` that was stored with the cursor, to detect another log.
            on_gap: `"raise"`, or `"continue"` to skip events that retention has deleted.
            silence_seconds: A connection is closed and replaced if the hub sends nothing for this long.

        Returns:
            An asynchronous iterator over the events.

        Raises:
            InvalidOption: `on_gap` or `silence_seconds` is not valid.
            InvalidInput: The cursor is not valid.
        """
        check_seconds("silence_seconds", silence_seconds, SECONDS_MAX, positive=True)
        connect = functools.partial(self._stream, topic_id, silence_seconds)
        return Following(connect, after, log_epoch, on_gap)

    # Tasks and their attachments.

    async def create_task(
        self, title: str, *, task_id: str | None = None, spec_id: str | None = None, idempotency_key: str | None = None
    ) -> Task:
        """Create a task.

        Args:
            title: The title of the task.
            task_id: The id of the task. By default, the hub generates one.
            spec_id: The specification: a URL, or a path in the repository.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The task.

        Raises:
            AlreadyThere: Another task has this id.
        """
        sent = {"id": task_id, "title": title, "spec_id": spec_id}
        return await self._connection.change("POST", "/v1/tasks", sent, idempotency_key, responses.task)

    async def tasks(self, *, limit: int | None = None) -> list[Task]:
        """List tasks, newest first.

        Args:
            limit: The maximum number to return. Without it, all tasks.

        Returns:
            The tasks, from as many pages as needed.
        """
        return await self._connection.pages("/v1/tasks", {}, "tasks", responses.task, limit)

    async def task(self, task_id: str) -> Task:
        """Return a task.

        Args:
            task_id: The id of the task.

        Returns:
            The task.

        Raises:
            NotFound: The task does not exist.
        """
        return await self._connection.read(_task(task_id), {}, responses.task)

    async def delete_task(self, task_id: str) -> None:
        """Delete a task with all its attachments.

        The request is sent once: after `HubUnavailable`, the task may or may not be deleted.

        Args:
            task_id: The id of the task.

        Raises:
            NotFound: The task does not exist.
        """
        await self._connection.change("DELETE", _task(task_id), None, None, responses.nothing)

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
        """Upload a file as an attachment of a task.

        The file is read twice, and once more for each retry. A file that cannot be read again, such as a pipe, is first
        copied to memory or a temporary file.

        Args:
            task_id: The id of the task.
            file: A path, or an open binary file, which is read from its current position.
            kind: The kind: `spec`, `diagram`, `artifact`, `diagnostic`, `archive` or `other`.
            filename: The file name to store. By default, that of the file.
            reject_media_type_mismatch: Whether the hub refuses bytes that do not match `media_type`. By default, the
                hub's setting applies. Changing it requires scope `admin`.
            progress: Called with the number of bytes sent and their total. A retry starts at 0 again.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.
            about: Title, media type, expiry, labels and metadata; see `About`.

        Returns:
            The attachment.

        Raises:
            NotFound: The task does not exist.
            TooLarge: The file exceeds the hub's upload limit.
            InvalidInput: A field is not valid, or the file became shorter during the upload.
            OSError: The file cannot be read.
        """
        fields = _fields(kind, about, reject_media_type_mismatch)
        path = _task(task_id, "/attachments")
        return await upload(self._connection, path, file, fields, filename, idempotency_key, progress)

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
        """Attach a link to a task: exactly one of a URL and a path in a repository.

        Args:
            task_id: The id of the task.
            kind: The kind: `spec`, `diagram`, `artifact`, `diagnostic`, `archive` or `other`.
            external_url: An http or https URL.
            repo_path: A relative path in the repository.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.
            about: Title, media type, expiry, labels and metadata; see `About`.

        Returns:
            The attachment.

        Raises:
            NotFound: The task does not exist.
            InvalidInput: A field is not valid.
        """
        sent: dict[str, object] = {"kind": kind, "external_url": external_url, "repo_path": repo_path, **about}
        sent["labels"], sent["meta"] = list(about.get("labels", ())), dict(about.get("meta", {}))
        path = _task(task_id, "/attachments/link")
        return await self._connection.change("POST", path, sent, idempotency_key, responses.task_attachment)

    async def task_attachments(self, task_id: str, *, limit: int | None = None) -> list[TaskAttachment]:
        """List the attachments of a task, newest first.

        Args:
            task_id: The id of the task.
            limit: The maximum number to return. Without it, all attachments.

        Returns:
            The attachments, from as many pages as needed.

        Raises:
            NotFound: The task does not exist.
        """
        path = _task(task_id, "/attachments")
        return await self._connection.pages(path, {}, "attachments", responses.task_attachment, limit)

    async def attachment(self, attachment_id: str) -> TaskAttachment:
        """Return an attachment of a task.

        Args:
            attachment_id: The id of the attachment.

        Returns:
            The attachment, without its bytes.

        Raises:
            NotFound: The attachment does not exist.
        """
        return await self._connection.read(_attached(attachment_id), {}, responses.task_attachment)

    async def replace_labels(
        self, attachment_id: str, labels: Iterable[str], *, idempotency_key: str | None = None
    ) -> TaskAttachment:
        """Replace all labels of an attachment of a task.

        Args:
            attachment_id: The id of the attachment.
            labels: The new labels.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The attachment with its new labels.

        Raises:
            NotFound: The attachment does not exist.
        """
        sent = {"labels": list(labels)}
        path = _attached(attachment_id, "/labels")
        return await self._connection.change("PUT", path, sent, idempotency_key, responses.task_attachment)

    async def download(
        self,
        attachment_id: str,
        to: str | PathLike[str] | BinaryIO,
        *,
        overwrite: bool = False,
        progress: Progress = no_progress,
    ) -> Downloaded:
        """Download the bytes of an attachment of a task.

        A broken connection is resumed where it broke, and the SHA-256 is checked.

        Args:
            attachment_id: The id of the attachment.
            to: An open binary file, or a path. A file at a path is written completely or not at all.
            overwrite: Whether to replace an existing file at the path.
            progress: Called with the number of bytes received and their total.

        Returns:
            The size and the SHA-256 of the bytes.

        Raises:
            NotFound: The attachment does not exist.
            InvalidInput: The attachment is a link, of which the hub does not store the content.
            Expired: The attachment has expired.
            AlreadyThere: The path exists and `overwrite` is False, or the path is a folder.
            UnexpectedAnswer: The received bytes are not those that were stored.
            OSError: The file cannot be written.
        """
        path = _attached(attachment_id, "/content")
        if not isinstance(to, str | PathLike):
            return await download(self._connection, path, to, progress)
        with new_file(Path(to), overwrite=overwrite) as file:
            return await download(self._connection, path, file, progress)

    async def remove_attachment(self, attachment_id: str) -> None:
        """Remove an attachment of a task.

        The request is sent once: after `HubUnavailable`, the attachment may or may not be removed.

        Args:
            attachment_id: The id of the attachment.

        Raises:
            NotFound: The attachment does not exist.
        """
        await self._connection.change("DELETE", _attached(attachment_id), None, None, responses.nothing)

    # Administration. Requires scope admin.

    async def gc_blobs(
        self,
        *,
        dry_run: bool = True,
        grace_seconds: float | None = None,
        batch_size: int | None = None,
        idempotency_key: str | None = None,
    ) -> Collected:
        """Delete expired attachments and bytes that nothing needs, or only count them. Requires scope `admin`.

        Args:
            dry_run: Only count.
            grace_seconds: The time that a blob is kept after its last upload. By default, the hub's setting.
            batch_size: The number of blobs per batch. By default, the hub's setting.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The counts.
        """
        return await self.storage.gc(
            dry_run=dry_run, grace_seconds=grace_seconds, batch_size=batch_size, idempotency_key=idempotency_key
        )

    async def fsck(self, *, quarantine: bool = True, idempotency_key: str | None = None) -> list[Damage]:
        """Check the stored bytes of every blob against their size and SHA-256. Requires scope `admin`.

        Args:
            quarantine: Whether to move damaged bytes aside, so that they are not served.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The damaged blobs.
        """
        return list((await self.storage.check(quarantine=quarantine, idempotency_key=idempotency_key)).damaged)

    async def backfill_spec_attachments(
        self, *, progress: Progress = no_progress, idempotency_key: str | None = None
    ) -> Backfilled:
        """Create an attachment from each task's `spec_id`, once. Requires scope `admin`.

        Args:
            progress: Called with the number of tasks that are done and their total.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The counts, and the tasks that failed.
        """
        path = "/v1/admin/backfill-spec-attachments"
        return await long_work(self._connection, path, {}, idempotency_key, progress, responses.backfilled)

    async def settings(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return every setting of the hub, as `onceward config --json` prints them. Requires scope `admin`.

        Returns:
            The settings by table and key, each with its `value` and its `source`. Passwords are masked.
        """
        return await self._connection.read("/api/v1/settings", {}, lambda body: dict(body["settings"]))

    # State of the hub. Requested once, without retries, because the current state is wanted.

    async def healthz(self) -> bool:
        """Return whether the hub responds.

        Returns:
            True if the hub responds; False if it is unavailable.
        """
        try:
            return (await self._connection.probe("/healthz")).is_success
        except HubUnavailable:
            return False

    async def readyz(self) -> Readiness:
        """Return whether the hub and its stores are ready.

        Returns:
            The readiness, with the state of each store.

        Raises:
            UnexpectedAnswer: The response is not one of a hub.
        """
        try:
            response = await self._connection.probe("/readyz")
        except HubUnavailable:
            return Readiness(ready=False, checks={"hub": "no answer"})
        try:
            return responses.readiness(response.json())
        except (KeyError, TypeError, ValueError) as error:
            raise responses.unexpected(response) from error

    async def _stream(self, topic_id: str | None, silence_seconds: float, after: int | None) -> httpx.Response:
        request = self._connection.get("/api/v1/events/stream", {"topic_id": topic_id})
        request.headers.update({"Accept": "text/event-stream", "Accept-Encoding": "identity"})
        if after is not None:
            request.headers["Last-Event-ID"] = str(after)
        timeout = httpx.Timeout(self._connection.try_seconds, read=silence_seconds)
        request.extensions = {**request.extensions, "timeout": timeout.as_dict()}
        return await self._connection.open(request, _is_stream)


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
    """Return the form fields of an upload, without those that are not set."""
    fields = {"kind": kind, "title": about.get("title"), "expires_at": about.get("expires_at")}
    fields["media_type"] = about.get("media_type")
    if meta := about.get("meta"):
        fields["meta"] = as_json(meta).decode()
    if reject_mismatch is not None:
        fields["reject_media_type_mismatch"] = "true" if reject_mismatch else "false"
    labels = [("labels[]", label) for label in about.get("labels", ())]
    return [(name, value) for name, value in fields.items() if value is not None] + labels
