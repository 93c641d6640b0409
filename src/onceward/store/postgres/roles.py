"""Privileges on the ledger's tables for the application's role, if another role has created the tables."""

from __future__ import annotations

from onceward.errors import InvalidOption

_READ, _WRITTEN, _SEQUENCE = (
    "platform_idempotency_meta",
    ("platform_idempotency_keys", "platform_idempotency_chunks"),
    "platform_idempotency_versions",
)
# The longest name of a role. PostgreSQL truncates a longer one, and the result may be the name of another role.
_ROLE_BYTES_MAX = 63

# The privileges that the current role lacks, as a text.
MISSING = f"""
SELECT string_agg(privilege || ' ON ' || name, ', ')
FROM (SELECT name, privilege FROM unnest(ARRAY{list(_WRITTEN)!r}) AS name,
             unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
      WHERE NOT has_table_privilege(name, privilege)
      UNION ALL
      SELECT name, 'USAGE' FROM unnest(ARRAY['{_SEQUENCE}']) AS name
      WHERE NOT has_sequence_privilege(name, 'USAGE')) AS missing
"""  # noqa: S608  # constants


def ledger_grants(role: str) -> str:
    """Return the statements that let this role use the ledger's tables, but not alter them."""
    name = quoted(role)
    return f"""\
{usage(role)}
GRANT SELECT ON {_READ} TO {name};
GRANT SELECT, INSERT, UPDATE, DELETE ON {", ".join(_WRITTEN)} TO {name};
GRANT USAGE ON SEQUENCE {_SEQUENCE} TO {name};
"""


def usage(role: str) -> str:
    """Return a statement that lets a role use the schema of the tables, which is the first of the search path."""
    literal = role.replace("'", "''")
    return f"DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), '{literal}'); END $$;"


def quoted(role: str) -> str:
    """Quote the name of a role for SQL."""
    if not role or "\x00" in role or len(role.encode()) > _ROLE_BYTES_MAX or "$$" in role:
        raise InvalidOption(f"the name of a role must have 1 to {_ROLE_BYTES_MAX} bytes, got {role!r}")
    return '"' + role.replace('"', '""') + '"'
