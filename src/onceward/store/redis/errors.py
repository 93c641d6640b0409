"""Classification of Redis errors: transient ones, and those that an operator has to correct.

Too many clients, no memory, a full disk, a server that loads its data and a cluster that is down are transient.
"""

from __future__ import annotations

_LOGIN = "check the user and the password in the URL"
# The driver's class, the first word of the server's error, and what to do. The driver omits the word if it has a class
# for the error. Errors of a script or a pipelined batch have only the word.
_PERMANENT = (
    ("AuthenticationError", "WRONGPASS", _LOGIN),
    ("AuthenticationWrongNumberOfArgsError", "NOAUTH", _LOGIN),
    ("NoPermissionError", "NOPERM", "give this user the commands and the keys that the store needs"),
    ("ReadOnlyError", "READONLY", "this server is a read-only replica; name the primary in the URL"),
    ("", "DB index is out of range", "choose a database number that the server has"),
)


def misconfiguration(error: Exception) -> str | None:
    """Return what is wrong and what to do about it, or None for a transient error."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    for kind, word, advice in _PERMANENT:
        if kind in kinds or word in str(error):
            return f"the Redis store refuses: {type(error).__name__}: {error}; {advice}"
    return None
