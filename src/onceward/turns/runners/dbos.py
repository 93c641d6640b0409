"""`DbosRunner`, which runs turns on DBOS. Needs the extra `dbos`."""

from onceward.hub.turns.runners.dbos import DbosRunner

__all__ = ["DbosRunner"]
