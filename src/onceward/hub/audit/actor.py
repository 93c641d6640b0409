"""Actors of the audit log: the caller of a request, the user who runs a command on the data, or the hub itself."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from onceward.hub.security.auth import Principal
from onceward.hub.web.request_log import current_request_id

Source: TypeAlias = Literal["api", "console", "command", "job"]


@dataclass(frozen=True, slots=True)
class Actor:
    """The principal of a request, a user of this machine, or the hub. `source` tells two of the same name apart."""

    principal: str
    source: Source
    token_id: str | None = None
    client: str | None = None
    request_id: str | None = None


def actor_of(scope: Any, source: Source = "api") -> Actor:
    """Return the caller of a request that has passed `AuthMiddleware`, or of one that the console has authenticated."""
    principal: Principal = scope["state"]["principal"]
    client = scope.get("client")
    request_id = current_request_id() or None
    return Actor(principal.name, source, principal.token_id, client[0] if client else None, request_id)


def local_actor() -> Actor:
    """Return the user of this process, for commands that work on the data without the hub."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a user id without a name.
        name = f"uid {os.getuid()}"
    return Actor(name, "command")


# A periodic job of the hub. Its entries are written only if it deleted something.
HUB_JOB = Actor("hub", "job")
