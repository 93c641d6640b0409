"""Connection poolers in transaction mode, such as pgbouncer: each transaction may run in another session of the server.

Prepared statements, settings, session locks and LISTEN stay with a session, which belongs to another client after the
transaction. So behind a pooler nothing may outlive its transaction. A pooler is recognised without a setting: it
invents the process id that a client gets when it connects, and the session of the server has another one (decision
0035).
"""

from __future__ import annotations

import re
from enum import Enum

from onceward.errors import InvalidStoreUrl

_PARAMETER = re.compile(r"(?<=[?&])pooler=([^&#]*)&?")


class Pooler(Enum):
    """The parameter `pooler` of a PostgreSQL URL."""

    AUTOMATIC = ""
    TRANSACTION = "transaction"
    SESSION = "session"


def split_pooler(url: str) -> tuple[str, Pooler]:
    """Return the URL without the parameter `pooler`, and its value. Raises `InvalidStoreUrl` for an unknown value."""
    found = _PARAMETER.search(url)
    if found is None:
        return url, Pooler.AUTOMATIC
    return _PARAMETER.sub("", url).rstrip("?&"), pooler_of(found[1])


def pooler_of(value: str) -> Pooler:
    """Parse the value of the parameter. Raises `InvalidStoreUrl` for an unknown value."""
    if value not in {Pooler.TRANSACTION.value, Pooler.SESSION.value}:
        raise InvalidStoreUrl("pooler= in the PostgreSQL URL must be transaction or session; leave it out to detect it")
    return Pooler(value)


def is_pooled(pooler: Pooler, client_pid: int, server_pid: int) -> bool:
    """Return whether a pooler may give each transaction another session.

    `client_pid` is the process id that the client got when it connected, `server_pid` that of the server's session.
    """
    if pooler is Pooler.AUTOMATIC:
        return client_pid != server_pid
    return pooler is Pooler.TRANSACTION
