"""Alembic environment: runs the missing migrations inside the transaction of `migrate`, or writes them as a script."""

from __future__ import annotations

from alembic import context

if context.is_offline_mode():
    # A script, as one transaction.
    context.configure(
        dialect_name="postgresql", literal_binds=True, transactional_ddl=True, dialect_opts={"paramstyle": "named"}
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
    context.run_migrations()
