"""PostgreSQL under the hub's database: its engine, the settings of its sessions, and poolers in front of it.

Not here: transactions (`hub/db/engine.py`), and the ledger's own connection (`store/postgres/`).
Start with `engine.py`. Needs the extra `postgres`.
"""

__all__ = ["connection", "engine"]
