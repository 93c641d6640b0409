"""A token of a Hatchet engine that does not exist. It contains the engine's address; its signature is not checked."""

from __future__ import annotations

import base64
import json

_CLAIMS = {"sub": "tenant", "server_url": "http://127.0.0.1:9", "grpc_broadcast_address": "127.0.0.1:9"}


def _encoded(part: dict[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


TOKEN = f"{_encoded({'alg': 'none'})}.{_encoded(_CLAIMS)}."
