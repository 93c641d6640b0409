"""Backend of claims: a ledger opened directly, of a hub (running or not) or of any application."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click
from click.core import ParameterSource

from onceward.cli.backend import JsonObject
from onceward.errors import InvalidOption, NotFound
from onceward.http.stored.codec import ResponseCodec
from onceward.hub.audit.actor import local_actor
from onceward.hub.audit.log import Details
from onceward.hub.audit.recorder import StartedAction, claim_target, outcome_details, record_action_blocking
from onceward.hub.claims import claims
from onceward.hub.claims.given_response import GivenResponse
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config
from onceward.hub.db.engine import Database
from onceward.ledger.blocking import wait
from onceward.ledger.ledger import Ledger


def check_exists(config: Config) -> None:
    """Raise an error if the ledger cannot be opened from here, or its file does not exist."""
    url = config.ledger_url
    if url.startswith("memory:"):
        raise InvalidOption("a ledger in memory exists only inside its hub; connect to the hub with --hub")
    # Opening a missing ledger would create it, and hide that the folder is probably the wrong one.
    if url.startswith("sqlite:") and not (file := Path(unquote(urlsplit(url).path)[1:])).exists():
        raise NotFound(
            f"the ledger {str(file)!r} does not exist; give one with --ledger or --data-dir, or a running hub with --hub"
        )


@contextmanager
def local_claims(config: Config) -> Iterator[LocalClaims]:
    check_exists(config)
    with data_folder.ledger(config) as ledger, _audited_database(config) as database:
        yield LocalClaims(ledger, data_folder.response_codec(config), database)


@contextmanager
def _audited_database(config: Config) -> Iterator[Callable[[], Database] | None]:
    """Yield a function that opens the hub's database on first use, or None for the ledger of another application.

    With `--ledger` and no option that names a hub's data, the ledger is that of another application.
    """
    names_hub = any(config.sources.get(("hub", key)) for key in ("data_dir", "database"))
    names_ledger = config.sources.get(("hub", "ledger"), "").startswith("flag")
    if not data_folder.has_data(config) or (names_ledger and not names_hub):
        yield None
        return
    with ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(data_folder.opened(config)))


class LocalClaims:
    """`onceward.cli.commands.claims.ClaimsBackend` on a ledger."""

    def __init__(
        self, ledger: Ledger, codec: ResponseCodec, audited_database: Callable[[], Database] | None = None
    ) -> None:
        self._ledger = ledger
        self._codec = codec
        self._audited_database = audited_database

    def claims(
        self, scope: str | None, status: str | None, limit: int, after: str | None, *, oldest: bool
    ) -> JsonObject:
        found = wait(claims.list_claims(self._ledger, scope, status, limit, oldest=oldest, after=after or ""))
        if not found["claims"] and after is None:
            self._warn_of_other_namespaces()
        return found

    def claim(self, scope: str, key: str) -> JsonObject:
        return wait(claims.show_claim(self._ledger, self._codec, scope, key))

    def resolve_claim(
        self, scope: str, key: str, version: int, verdict: str, reason: str, value: Any, response: JsonObject | None
    ) -> JsonObject:
        resolution = {"version": version, "verdict": verdict, "reason": reason, "value": value}
        resolution["response"] = None if response is None else GivenResponse(**response)
        details = {"version": version, "verdict": verdict, "reason": reason}
        with self._record_action("claim.resolve", claim_target(scope, key), details) as audit:
            user = local_actor().principal
            claim = wait(claims.resolve_claim(self._ledger, self._codec, user, scope=scope, key=key, **resolution))
            audit.details = outcome_details(claim)
        return claim

    def abandon_claim(self, scope: str, key: str, version: int, reason: str, *, force: bool) -> JsonObject:
        user = local_actor().principal
        details: dict[str, Any] = {"version": version, "force": force, "reason": reason}
        with self._record_action("claim.abandon", claim_target(scope, key), details) as audit:
            claim = wait(claims.abandon_claim(self._ledger, self._codec, user, scope=scope, key=key, **details))
            audit.details = outcome_details(claim)
        return claim

    def forget_claim(self, scope: str, key: str, version: int, reason: str) -> JsonObject:
        user = local_actor().principal
        details: dict[str, Any] = {"version": version, "reason": reason}
        with self._record_action("claim.forget", claim_target(scope, key), details) as audit:
            claim = wait(claims.forget_claim(self._ledger, self._codec, user, scope=scope, key=key, **details))
            audit.details = outcome_details(claim)
        return claim

    def _warn_of_other_namespaces(self) -> None:
        """Warn if only other namespaces have claims. With `--fail-if-any` and no `--namespace`, raise an error instead.

        Otherwise, a monitor of a namespace that nobody uses would report success forever.
        """
        own = self._ledger.namespace
        found = wait(claims.namespaces(self._ledger))
        if found and own not in found:
            others = ", ".join(sorted(found))
            warning = f"no claims in namespace {own}; choose one of these with --namespace: {others}"
            context = click.get_current_context()
            is_named = context.get_parameter_source("namespace") is ParameterSource.COMMANDLINE
            if context.params.get("fail_if_any") and not is_named:
                raise NotFound(warning)
            click.echo(warning, err=True)

    def purge_claims(self) -> JsonObject:
        with self._record_action("claim.purge", None, {}) as audit:
            shown = {"deleted_count": wait(claims.purge_claims(self._ledger))}
            audit.details = shown
        return shown

    @contextmanager
    def _record_action(self, action: str, target: str | None, details: Details) -> Iterator[StartedAction]:
        """Write the audit rows of an action around the block, if the ledger is a hub's."""
        actor = local_actor()
        if self._audited_database is None:
            yield StartedAction(actor, action, target, details)
            return
        with record_action_blocking(self._audited_database(), actor, action, target, details) as audit:
            yield audit
