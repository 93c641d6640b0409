"""Migrations from an empty database to the tables of this version, forward only.

Not here: the code that runs them (`hub/db/migrate.py`).
Start with `versions/`.
"""

# The last migration; a test compares it with the files. A database at this migration does not need Alembic.
HEAD = "0014"
