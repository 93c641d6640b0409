"""Backend of claims: a ledger opened directly, of a hub (running or not) or of any application."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click
from click.core import ParameterSource

from onceward.cli.backend import Shown
from onceward.errors import InvalidOption, NotFound
from onceward.http.stored.codec import ResponseCodec
from onceward.hub.claims import claims
from onceward.hub.claims.given_response import GivenResponse
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config
from onceward.ledger.blocking import wait
from onceward.ledger.ledger import Ledger


@contextmanager
def local_claims(config: Config) -> Iterator[LocalClaims]:
    url = config.ledger_url
    if url.startswith("memory:"):
        raise InvalidOption("a ledger in memory exists only inside its hub; connect to the hub with --hub")
    # Opening a missing ledger would create it, and hide that the folder is probably the wrong one.
    if url.startswith("sqlite:") and not (file := Path(unquote(urlsplit(url).path)[1:])).exists():
        raise NotFound(
            f"the ledger {str(file)!r} does not exist; give one with --ledger or --data-dir, or a running hub with --hub"
        )
    with data_folder.ledger(config) as ledger:
        yield LocalClaims(ledger, data_folder.response_form(config))


class LocalClaims:
    """`onceward.cli.commands.claims.ClaimsBackend` on a ledger."""

    def __init__(self, ledger: Ledger, form: ResponseCodec) -> None:
        self._ledger = ledger
        self._form = form

    def claims(self, scope: str | None, status: str | None, limit: int, after: str | None, *, oldest: bool) -> Shown:
        found = wait(claims.list_claims(self._ledger, scope, status, limit, oldest=oldest, after=after or ""))
        if not found["claims"] and after is None:
            self._warn_of_other_namespaces()
        return found

    def claim(self, scope: str, key: str) -> Shown:
        return wait(claims.show_claim(self._ledger, self._form, scope, key))

    def resolve_claim(
        self, scope: str, key: str, version: int, verdict: str, reason: str, value: Any, response: Shown | None
    ) -> Shown:
        resolution = {"version": version, "verdict": verdict, "reason": reason, "value": value}
        resolution["response"] = None if response is None else GivenResponse(**response)
        return wait(
            claims.resolve_claim(self._ledger, self._form, getpass.getuser(), scope=scope, key=key, **resolution)
        )

    def abandon_claim(self, scope: str, key: str, version: int, reason: str, *, force: bool) -> Shown:
        abandoning = claims.abandon_claim(
            self._ledger,
            self._form,
            getpass.getuser(),
            scope=scope,
            key=key,
            version=version,
            reason=reason,
            force=force,
        )
        return wait(abandoning)

    def forget_claim(self, scope: str, key: str, version: int, reason: str) -> Shown:
        forgetting = claims.forget_claim(
            self._ledger, self._form, getpass.getuser(), scope=scope, key=key, version=version, reason=reason
        )
        return wait(forgetting)

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

    def purge_claims(self) -> Shown:
        return {"deleted_count": wait(claims.purge_claims(self._ledger))}
