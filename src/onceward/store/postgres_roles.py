"""What the role that runs an application needs of the ledger's tables on PostgreSQL, where another role has made them."""

from __future__ import annotations

from onceward.errors import InvalidOption

_READ, _WRITTEN, _SEQUENCE = (
    "platform_idempotency_meta",
    ("platform_idempotency_keys", "platform_idempotency_chunks"),
    "platform_idempotency_versions",
)
# PostgreSQL cuts a longer one off, and then it names another role.
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
    """The statements that let this role use the ledger's tables and not change them."""
    name = quoted(role)
    return f"""\
{usage(role)}
GRANT SELECT ON {_READ} TO {name};
GRANT SELECT, INSERT, UPDATE, DELETE ON {", ".join(_WRITTEN)} TO {name};
GRANT USAGE ON SEQUENCE {_SEQUENCE} TO {name};
"""


def usage(role: str) -> str:
    """Let a role see the schema in which the tables are made: the first of the search path."""
    literal = role.replace("'", "''")
    return f"DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), '{literal}'); END $$;"


def quoted(role: str) -> str:
    """The name of a role as SQL has it, whatever is in it."""
    if not role or "\x00" in role or len(role.encode()) > _ROLE_BYTES_MAX or "$$" in role:
        raise InvalidOption(f"a role has a name of 1 to {_ROLE_BYTES_MAX} bytes, not {role!r}")
    return '"' + role.replace('"', '""') + '"'
