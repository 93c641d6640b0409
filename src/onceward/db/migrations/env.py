"""What Alembic runs: the steps that are missing, inside the transaction that `migrate` holds open."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
