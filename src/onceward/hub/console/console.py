"""The console of one process: the ledger whose operations it shows, its visitors, and the hub, if there is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection

from onceward.http.stored.codec import ResponseCodec
from onceward.hub.console.check_ring import CheckRing
from onceward.hub.console.counter_history import CounterHistory
from onceward.hub.console.login_limit import LoginLimit
from onceward.hub.console.recent_verdicts import RecentVerdicts
from onceward.hub.console.visitors import HubVisitors, Visitors
from onceward.ledger.ledger import Ledger

if TYPE_CHECKING:
    from onceward.hub.state import HubState


@dataclass(frozen=True, slots=True)
class Console:
    """Everything that the pages read.

    Attributes:
        ledger: The ledger.
        codec: The codec with which the application stores responses.
        visitors: How the console knows its visitors.
        checks: The last checks of this process; None if the application runs in another one.
        history: The counters of the last hour; None if the application runs in another process.
        hub: The hub; None for the ledger of an application of its own.
        about: The name and the place of the ledger, without passwords.
        verdicts: The last answers of providers that this process has asked.
        login_limit: The failed logins of this process.
    """

    ledger: Ledger
    codec: ResponseCodec
    visitors: Visitors
    checks: CheckRing | None = None
    history: CounterHistory | None = None
    hub: HubState | None = None
    about: str = ""
    verdicts: RecentVerdicts = field(default_factory=RecentVerdicts)
    login_limit: LoginLimit = field(default_factory=LoginLimit)


def console_of_hub(hub: HubState, about: str) -> Console:
    """Return the console of a hub."""
    return Console(hub.ledger, hub.response_codec, HubVisitors(hub.database), hub.checks, hub.counters, hub, about)


def console_of(connection: HTTPConnection) -> Console:
    console: Console = connection.app.state.console
    return console
