"""HTTP requests that are safe to retry: middleware for ASGI and WSGI, and what handlers may ask of it."""

from onceward.http.asgi import IdempotencyMiddleware
from onceward.http.operation import Operation, idempotency
from onceward.http.rules import Rule, idempotent

__all__ = ["IdempotencyMiddleware", "Operation", "Rule", "idempotency", "idempotent"]
