"""Middleware for ASGI and WSGI that makes HTTP requests safe to retry, and its API for handlers.

A request passes through `middleware/`, `request/`, `keyed/`, `response/` and `stored/`. Beside them: problems, metrics,
webhooks and OpenAPI. Not here: the ledger (`ledger/`).
Start with `middleware/asgi.py`, then `keyed/admission.py`. The client side is in `client/`.
"""

from onceward.http.keyed.operation import Operation, idempotency
from onceward.http.keyed.rules import Rule, idempotent
from onceward.http.middleware.asgi import IdempotencyMiddleware
from onceward.http.middleware.coverage import check_guarded
from onceward.http.middleware.wsgi import WSGIIdempotencyMiddleware
from onceward.http.openapi import document_idempotency
from onceward.http.problem import Refusal
from onceward.http.problem_formats import acp_error, problem_json, stripe_error, ucp_error
from onceward.http.request.key_source import KeySource, RequestHead, first_of, header, json_field, query

__all__ = [
    "IdempotencyMiddleware",
    "KeySource",
    "Operation",
    "Refusal",
    "RequestHead",
    "Rule",
    "WSGIIdempotencyMiddleware",
    "acp_error",
    "check_guarded",
    "document_idempotency",
    "first_of",
    "header",
    "idempotency",
    "idempotent",
    "json_field",
    "problem_json",
    "query",
    "stripe_error",
    "ucp_error",
]
