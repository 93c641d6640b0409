"""Which errors of Redis pass by themselves, and which an operator has to correct.

Too many clients, no memory, a full disk, loading, a cluster that is down: all of these pass.
"""

from __future__ import annotations

_LOGIN = "check the user and the password in the URL"
# The driver's class, the server's own word, and what to do. The driver leaves the word out where it has a class for it;
# what comes from a script or a pipelined batch has only the word.
_PERMANENT = (
    ("AuthenticationError", "WRONGPASS", _LOGIN),
    ("AuthenticationWrongNumberOfArgsError", "NOAUTH", _LOGIN),
    ("NoPermissionError", "NOPERM", "give this user the commands and the keys that the store needs"),
    ("ReadOnlyError", "READONLY", "this server is a read-only replica; name the primary in the URL"),
    ("", "DB index is out of range", "choose a database number that the server has"),
)


def misconfiguration(error: Exception) -> str | None:
    """What is wrong and what to do about it; None for an error that may pass by itself."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    for kind, word, advice in _PERMANENT:
        if kind in kinds or word in str(error):
            return f"the Redis store refuses: {type(error).__name__}: {error}; {advice}"
    return None
