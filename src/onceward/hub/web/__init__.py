"""Code that routes share, such as bodies, uploads, pages and problems, and the hub's own middlewares and metrics.

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
