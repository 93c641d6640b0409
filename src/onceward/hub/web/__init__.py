"""Code that routes share: bodies, uploads, downloads, pagination, problems, metrics, and the request log.

Not here: the routes (`hub/routes/`), authentication and scopes (`hub/security/`), the OpenAPI document (`hub/openapi.py`).
Start with `problems.py` and `json_body.py`.
"""

__all__ = [
    "active_schema",
    "constraints",
    "download",
    "head",
    "ingest_bodies",
    "json_body",
    "metrics",
    "pagination",
    "problems",
    "refusals",
    "request_log",
    "route_index",
    "task_bodies",
    "upload",
    "websocket_404",
]
