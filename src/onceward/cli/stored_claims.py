"""A ledger, straight: that of a hub, whether or not it runs, or any other that an application uses."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click
from click.core import ParameterSource

from onceward.blocking import wait
from onceward.cli.target import Shown
from onceward.errors import InvalidOption, NotFound
from onceward.http.kept import Form
from onceward.hub import claims, data
from onceward.hub.config import Config
from onceward.hub.given_response import Given
from onceward.ledger import Ledger


@contextmanager
def stored_claims(config: Config) -> Iterator[StoredClaims]:
    url = config.ledger_url
    if url.startswith("memory:"):
        raise InvalidOption("a ledger in memory is known to its hub alone; ask it with --hub")
    # Opening one would make it, and whoever looks for claims in an empty folder looks in the wrong one.
    if url.startswith("sqlite:") and not (file := Path(unquote(urlsplit(url).path)[1:])).exists():
        raise NotFound(f"there is no ledger {str(file)!r}; name it with --ledger or --data-dir, or a hub with --hub")
    with data.ledger(config) as ledger:
        yield StoredClaims(ledger, data.response_form(config))


class StoredClaims:
    """As `onceward.cli.claims.Place`."""

    def __init__(self, ledger: Ledger, form: Form) -> None:
        self._ledger = ledger
        self._form = form

    def claims(self, scope: str | None, status: str | None, limit: int, after: str | None, *, oldest: bool) -> Shown:
        found = wait(claims.list_claims(self._ledger, scope, status, limit, oldest=oldest, after=after or ""))
        if not found["claims"] and after is None:
            self._tell_of_others()
        return found

    def claim(self, scope: str, key: str) -> Shown:
        return wait(claims.show_claim(self._ledger, self._form, scope, key))

    def resolve_claim(
        self, scope: str, key: str, version: int, verdict: str, reason: str, value: Any, response: Shown | None
    ) -> Shown:
        said = {"version": version, "verdict": verdict, "reason": reason, "value": value}
        said["response"] = None if response is None else Given(**response)
        return wait(claims.resolve_claim(self._ledger, self._form, getpass.getuser(), scope=scope, key=key, **said))

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

    def _tell_of_others(self) -> None:
        """An empty list may be that of a namespace that nobody uses: a monitor that did not name one must fail."""
        own = self._ledger.namespace
        found = wait(claims.namespaces(self._ledger))
        if found and own not in found:
            others = ", ".join(sorted(found))
            said = f"no claim has the namespace {own}; choose another with --namespace: {others}"
            context = click.get_current_context()
            is_named = context.get_parameter_source("namespace") is ParameterSource.COMMANDLINE
            if context.params.get("fail_if_any") and not is_named:
                raise NotFound(said)
            click.echo(said, err=True)

    def purge_claims(self) -> Shown:
        return {"deleted_count": wait(claims.purge_claims(self._ledger))}
