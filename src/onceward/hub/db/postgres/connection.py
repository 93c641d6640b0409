"""The driver's connection of the hub: whether it goes through a pooler, and how long it waits for one."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Any, cast

from onceward.store.postgres.driver import psycopg, wait_within

if TYPE_CHECKING:
    import sqlalchemy

# A pooler whose connections are all in use lets its clients wait, pgbouncer for two minutes by default. The hub gives up
# earlier: nothing has been sent to the server yet, and the client should retry.
START_SECONDS = 3.0
# The same for the first statement of a connection of which it is not known whether it goes through a pooler.
_FIRST_SECONDS = 10.0

_IDLE = psycopg.pq.TransactionStatus.IDLE


class NoFreeConnectionError(psycopg.OperationalError):
    """The pooler had no free connection to the server."""

    sqlstate = "53300"


class DatabaseConnection(psycopg.Connection[Any]):
    """A connection. Behind a pooler, a transaction must begin within `START_SECONDS`, and so must a single statement."""

    is_pooled: bool = False
    # Whether `is_pooled` is known. The statement that finds out waits for the pooler, too.
    is_ready: bool = False

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a generator of psycopg; within `START_SECONDS` if it begins a transaction behind a pooler."""
        if (self.is_ready and not self.is_pooled) or self.pgconn.transaction_status != _IDLE:
            return super().wait(gen, *args, **kwargs)
        seconds = START_SECONDS if self.is_pooled else _FIRST_SECONDS
        try:
            return wait_within(self.pgconn.socket, gen, next(gen), seconds)
        except StopIteration as end:
            return end.value
        except TimeoutError:
            # The pooler has not given the statement to the server. Without its client, it forgets it.
            self.close()
            if not self.is_pooled:
                raise psycopg.OperationalError(f"the server did not respond within {seconds:g} s") from None
            raise NoFreeConnectionError(f"the pooler had no free connection for {seconds:g} s") from None

    def has_input(self) -> bool:
        """Return whether something has arrived. On an idle connection, that is usually its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.pgconn.socket, selectors.EVENT_READ)
            return bool(selector.select(0))


def database_connection(connection: sqlalchemy.Connection) -> DatabaseConnection:
    """Return the driver's connection. It is also there for a connection that was detached from its pool."""
    return cast("DatabaseConnection", connection.connection.dbapi_connection)
