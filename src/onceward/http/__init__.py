"""HTTP requests that are safe to retry: middleware for ASGI and WSGI, and what handlers may ask of it."""

from onceward.http.asgi import IdempotencyMiddleware
from onceward.http.coverage import check_guarded
from onceward.http.openapi import document_idempotency
from onceward.http.operation import Operation, idempotency
from onceward.http.rules import Rule, idempotent
from onceward.http.wsgi import WSGIIdempotencyMiddleware

__all__ = [
    "IdempotencyMiddleware",
    "Operation",
    "Rule",
    "WSGIIdempotencyMiddleware",
    "check_guarded",
    "document_idempotency",
    "idempotency",
    "idempotent",
]
