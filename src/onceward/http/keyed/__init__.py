"""A keyed request before its handler runs: the rules of its route, its principal, and its admission.

Not here: reading the request (`http/request/`), and everything after the handler starts (`http/response/`).
Start with `admission.py`.
"""

from onceward.http.keyed.admission import Admission
from onceward.http.keyed.operation import Operation, idempotency
from onceward.http.keyed.options import MiddlewareOptions
from onceward.http.keyed.rules import Rule, idempotent

__all__ = [
    "Admission",
    "MiddlewareOptions",
    "Operation",
    "Rule",
    "admission",
    "asgi_request",
    "framework_response",
    "idempotency",
    "idempotent",
    "operation",
    "options",
    "principal",
    "profiles",
    "refusal",
    "rules",
]
