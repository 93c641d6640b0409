"""What the commands for tasks and attachments work on: a hub that runs, or the data of one, without it.

Both give what the hub's own answers have, so that a command prints the same for either.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

import click

from onceward.cli.settings import WITH_BYTES, loaded, with_flags
from onceward.errors import Unauthorized
from onceward.hub.config import Config

# What shells add to the number of the signal that ended a process.
_SIGNALLED = 128

# As a hub shows it: an object of JSON.
Shown: TypeAlias = dict[str, Any]
# How many are done, of how many, if that is known.
Progress: TypeAlias = Callable[[int, int | None], object]


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of an attachment."""

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
    help="The same command with the same key makes it once, and prints the same.",
)

with_limit = click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="The most to list. [default: all of them]"
)


class Target(Protocol):
    """Raises what `onceward.errors` has. What is made with a key is made once, however often it is asked for."""

    def create_task(self, title: str, task_id: str | None, spec_id: str | None, key: str | None) -> Shown: ...

    def tasks(self, limit: int | None) -> list[Shown]: ...

    def task(self, task_id: str) -> Shown: ...

    def delete_task(self, task_id: str) -> None: ...

    def attach_file(
        self, task_id: str, file: BinaryIO, said: Said, key: str | None, *, allow_mismatch: bool, progress: Progress
    ) -> Shown: ...

    def attach_link(
        self, task_id: str, said: Said, key: str | None, *, external_url: str | None, repo_path: str | None
    ) -> Shown: ...

    def attachments(self, task_id: str, limit: int | None) -> list[Shown]: ...

    def attachment(self, attachment_id: str) -> Shown: ...

    def replace_labels(self, attachment_id: str, labels: Iterable[str]) -> Shown: ...

    def download(self, attachment_id: str, to: BinaryIO, progress: Progress) -> Shown:
        """Write all bytes, as they were stored, or raise; gives their `size_bytes` and `sha256`."""

    def remove_attachment(self, attachment_id: str) -> None: ...

    def gc_blobs(
        self, *, dry_run: bool, grace_seconds: float | None, batch_size: int | None, progress: Progress
    ) -> Shown: ...

    def fsck(self, *, quarantine: bool, progress: Progress) -> Shown: ...

    def backfill_spec_attachments(self, progress: Progress) -> Shown: ...


def on_target(command: Callable[..., Any], *, may_be_new: bool = False) -> Callable[..., Any]:
    """Adds the options that say where; the command gets a `target` instead of them.

    Only what may be new is made; for every other command a folder without data is the wrong folder.
    """

    @contextmanager
    def here(config: Config) -> Iterator[Target]:
        from onceward.cli.stored_data import stored_data  # noqa: PLC0415  # a database is a lot to import for `--help`

        with stored_data(config, may_be_new=may_be_new) as data:
            yield data

    return somewhere(command, WITH_BYTES, here)


def somewhere(
    command: Callable[..., Any],
    flags: tuple[str, ...],
    here: Callable[[Config], AbstractContextManager[Any]],
    there: Callable[[str, str | None], AbstractContextManager[Any]] | None = None,
) -> Callable[..., Any]:
    """Adds the options that say where: what `here` makes of the configuration, or `there` of a URL and a token."""

    @functools.wraps(command)
    def with_target(hub: str | None, token: str | None, config_file: Path | None, **given: Any) -> Any:
        said = {flag: given.pop(flag) for flag in flags}
        with _ended_in_order(), _opened(hub, token, config_file, said, here, there or _running) as target:
            return command(target, **given)

    decorated = with_flags(with_target, *flags)
    decorated = click.option(
        "--token", metavar="TOKEN", envvar="ONCEWARD_TOKEN", help="For --hub. [default: ONCEWARD_TOKEN]"
    )(decorated)
    return click.option(
        "--hub", metavar="URL", help="A hub that runs. [default: none; straight on the data folder and database]"
    )(decorated)


def exactly_one(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Refuses a command, before anything is opened, that was not given one of these options."""

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
def _ended_in_order() -> Iterator[None]:
    """Whoever ends the command by SIGTERM leaves no half of a file behind."""
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
def _opened(
    hub: str | None,
    token: str | None,
    config_file: Path | None,
    flags: Mapping[str, str | None],
    here: Callable[[Config], AbstractContextManager[Any]],
    there: Callable[[str, str | None], AbstractContextManager[Any]],
) -> Iterator[Any]:
    if hub is None:
        with here(loaded(config_file, flags)) as found:
            yield found
        return
    if given := [name for name, value in {"config": config_file, **flags}.items() if value is not None]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"--hub asks a hub that runs; it does not go with {names}", click.get_current_context())
    with _advised(token), there(hub, token) as running:
        yield running


@contextmanager
def _advised(token: str | None) -> Iterator[None]:
    """The hub says how a token is sent; what helps here is how the command gets one."""
    try:
        yield
    except Unauthorized as error:
        if token is None:
            told = "the hub needs a token: give it with --token or in ONCEWARD_TOKEN"
            raise Unauthorized(f"{told}; `onceward token create` makes one") from error
        raise Unauthorized(f"{str(error).rstrip('.')}; `onceward token list` shows those that live") from error


@contextmanager
def _running(url: str, token: str | None) -> Iterator[Any]:
    from onceward.cli.running_hub import running_hub  # noqa: PLC0415  # only who speaks HTTP needs a client

    with running_hub(url, token) as running:
        yield running
