"""Access control of the hub: tokens, scopes, allowed hosts, client addresses, and the end of streams whose token is revoked.

Not here: limits on connections (`hub/server/`).
Start with `auth.py`.
"""

__all__ = ["auth", "client_address", "hosts", "revocation", "scopes", "streams", "tokens"]
