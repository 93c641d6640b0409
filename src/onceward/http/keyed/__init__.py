"""A keyed request: the rules of its route, its principal, its admission, and the handler's view of it.

Not here: keys and bodies in general (`http/request/`), and recorded responses (`http/response/`).
Start with `admission.py`; `asgi_request.py` reads the headers and the body before the key is claimed.
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
