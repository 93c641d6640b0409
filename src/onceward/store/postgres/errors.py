"""Classification of PostgreSQL errors: transient ones, and those that an operator has to correct.

Errors of the role, its password, its privileges, the database or the schema are permanent: a retry does not help.
Everything else is transient: a server that starts, stops or fails over, too many clients, a full disk, a lost
connection, and an unknown host name (in container networks, a name appears when its service starts).
"""

from __future__ import annotations

from typing import Literal

Option = Literal["--ledger", "--database"]

_ADVICE = {
    "25006": "the server is read-only, perhaps a standby; name the primary in the URL",
    "28000": "check the user in the URL, and pg_hba.conf on the server",
    "28P01": "check the user and the password in the URL",
    "3D000": "create the database, or correct its name in the URL",
    "3F000": "create a schema that is in the search_path of this role",
    "42501": (
        "let a role that owns the tables, or may create them, run `onceward schema create {option} URL --role ROLE`,"
        " or print the SQL for it with `onceward schema print {option} URL --role ROLE`"
    ),
}
# When the server refuses a connection, libpq provides only the message, not the SQLSTATE.
_REFUSALS = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("authentication failed", "28000"),
    ("is not permitted to log in", "28000"),
    ("permission denied for database", "42501"),
)

_TOO_MANY_CONNECTIONS = "53300"
# The server's words, for which libpq provides no SQLSTATE either, and those of pgbouncer.
_OVERLOADED = (
    "too many clients",
    "too many connections",
    "remaining connection slots are reserved",
    "no more connections allowed",
    "query_wait_timeout",
)


def misconfiguration(sqlstate: str | None, message: str, option: Option) -> str | None:
    """Return what is wrong and what to do about it, or None for a transient error."""
    state = sqlstate or _state_of_refusal(message)
    if state not in _ADVICE:
        return None
    return f"PostgreSQL refuses: {one_line(message)}; {_ADVICE[state].format(option=option)}"


def is_overloaded(sqlstate: str | None, message: str) -> bool:
    """Return whether the server or a pooler has no free connection. Then nothing was sent to the server."""
    return sqlstate == _TOO_MANY_CONNECTIONS or any(words in message for words in _OVERLOADED)


def one_line(message: str) -> str:
    """Return a driver's message without line breaks."""
    return " ".join(message.split())


def _state_of_refusal(message: str) -> str:
    for words, state in _REFUSALS:
        if words in message:
            return state
    if "does not exist" in message and "FATAL" in message:
        return "28000" if 'role "' in message else "3D000"
    return ""
