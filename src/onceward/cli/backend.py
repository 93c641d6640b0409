"""Backends of the commands for tasks and attachments: a running hub, or the data of a hub, opened directly.

Both return the fields of the hub's own responses, so that a command prints the same for either.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias

import click

from onceward.cli.hub_flags import with_hub_flags
from onceward.cli.settings import WITH_BYTES, loaded, with_flags
from onceward.cli.token_file import token_of
from onceward.errors import Unauthorized
from onceward.hub.config.config import Config

if TYPE_CHECKING:
    from onceward.hub.client.connection import HubOptions

# Exit code of a process that a signal ended: this plus the signal's number, as in shells.
_SIGNALLED = 128

# A JSON object as the hub returns it.
JsonObject: TypeAlias = dict[str, Any]
# Takes the number done, and the total if it is known.
Progress: TypeAlias = Callable[[int, int | None], object]
# Opens the backend of a running hub: URL, token, and options of the client.
Remote: TypeAlias = Callable[[str, str | None, "HubOptions"], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class AttachmentDetails:
    """The description of a new attachment."""

    kind: str
    title: str | None = None
    filename: str | None = None
    media_type: str | None = None
    expires_at: str | None = None
    labels: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


with_key = click.option(
    "--idempotency-key",
    "key",
    metavar="KEY",
    help="Idempotency key: repeating the command with the same key creates nothing new and prints the same output.",
)

with_limit = click.option("--limit", type=click.IntRange(1), metavar="N", help="Maximum number to list. [default: all]")


class Backend(Protocol):
    """Tasks, attachments and blobs of a hub.

    Methods raise exceptions of `onceward.errors`. A create with a key has one effect, however often it is repeated.
    """

    def create_task(self, title: str, task_id: str | None, spec_id: str | None, key: str | None) -> JsonObject: ...

    def tasks(self, limit: int | None) -> list[JsonObject]: ...

    def task(self, task_id: str) -> JsonObject: ...

    def delete_task(self, task_id: str) -> None: ...

    def attach_file(
        self,
        task_id: str,
        file: BinaryIO,
        details: AttachmentDetails,
        key: str | None,
        *,
        allow_mismatch: bool,
        progress: Progress,
    ) -> JsonObject: ...

    def attach_link(
        self,
        task_id: str,
        details: AttachmentDetails,
        key: str | None,
        *,
        external_url: str | None,
        repo_path: str | None,
    ) -> JsonObject: ...

    def attachments(self, task_id: str, limit: int | None) -> list[JsonObject]: ...

    def attachment(self, attachment_id: str) -> JsonObject: ...

    def replace_labels(self, attachment_id: str, labels: Iterable[str]) -> JsonObject: ...

    def download(self, attachment_id: str, to: BinaryIO, progress: Progress) -> JsonObject:
        """Write all bytes as they were stored, or raise. Return their `size_bytes` and `sha256`."""

    def remove_attachment(self, attachment_id: str) -> None: ...

    def gc_blobs(
        self, *, dry_run: bool, grace_seconds: float | None, batch_size: int | None, progress: Progress
    ) -> JsonObject: ...

    def fsck(self, *, quarantine: bool, progress: Progress) -> JsonObject: ...

    def usage(self) -> JsonObject:
        """Return all principals as `usage`, and the quota as `max_bytes_per_principal`."""

    def backfill_spec_attachments(self, progress: Progress) -> JsonObject: ...


def on_backend(command: Callable[..., Any], *, may_be_new: bool = False) -> Callable[..., Any]:
    """Add the options that select a backend to a command, which gets a `backend` instead of them.

    With `may_be_new`, a missing data folder is created. For every other command, a folder without data is an error.
    """

    @contextmanager
    def local(config: Config) -> Iterator[Backend]:
        from onceward.cli.local.tasks import local_data  # noqa: PLC0415  # slow import; `--help` does without

        with local_data(config, may_be_new=may_be_new) as data:
            yield data

    return with_backend(command, WITH_BYTES, local)


def with_backend(
    command: Callable[..., Any],
    flags: tuple[str, ...],
    local: Callable[[Config], AbstractContextManager[Any]],
    remote: Remote | None = None,
) -> Callable[..., Any]:
    """Add the options that select a backend: `local` opens it from the configuration, `remote` from URL and token.

    `remote` also gets the options of the client.
    """

    @functools.wraps(command)
    def on_opened_backend(
        hub: str | None,
        token: str | None,
        token_file: Path | None,
        ca_file: Path | None,
        config_file: Path | None,
        **given: Any,
    ) -> Any:
        token = token_of(hub, token, token_file)
        options: HubOptions = {} if ca_file is None else {"ca_file": ca_file}

        def connect(url: str, token: str | None) -> AbstractContextManager[Any]:
            return (remote or _remote_hub)(url, token, options)

        flag_values = {flag: given.pop(flag) for flag in flags}
        with exit_on_sigterm(), _open_backend(hub, token, config_file, flag_values, local, connect) as backend:
            return command(backend, **given)

    return with_hub_flags(with_flags(on_opened_backend, *flags))


def exactly_one(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Refuse a command without exactly one of these options, before anything is opened."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def checked(**given: Any) -> Any:
            if sum(given[name] not in (None, False) for name in names) != 1:
                options = " and ".join(f"--{name.replace('_', '-')}" for name in names)
                raise click.UsageError(f"Give exactly one of {options}.", click.get_current_context())
            return command(**given)

        return checked

    return decorate


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit`, so that cleanup runs and no partial file is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        raise SystemExit(_SIGNALLED + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _open_backend(
    hub: str | None,
    token: str | None,
    config_file: Path | None,
    flags: Mapping[str, str | None],
    local: Callable[[Config], AbstractContextManager[Any]],
    remote: Callable[[str, str | None], AbstractContextManager[Any]],
) -> Iterator[Any]:
    if hub is None:
        with local(loaded(config_file, flags)) as found:
            yield found
        return
    if given := [name for name, value in {"config": config_file, **flags}.items() if value is not None]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(
            f"--hub connects to a running hub and cannot be combined with {names}", click.get_current_context()
        )
    with _advise_on_token(token), remote(hub, token) as running:
        yield running


@contextmanager
def _advise_on_token(token: str | None) -> Iterator[None]:
    """Replace the hub's advice on sending a token by advice on giving one to the command."""
    try:
        yield
    except Unauthorized as error:
        if token is None:
            advice = "the hub requires a token: pass --token-file or --token, or set ONCEWARD_TOKEN"
            raise Unauthorized(f"{advice}; `onceward token create` creates one") from error
        raise Unauthorized(f"{str(error).rstrip('.')}; `onceward token list` shows which are valid") from error


@contextmanager
def _remote_hub(url: str, token: str | None, options: HubOptions) -> Iterator[Any]:
    from onceward.cli.remote.hub import remote_hub  # noqa: PLC0415  # only needed with --hub

    with remote_hub(url, token, options) as running:
        yield running
