"""Ready-made reconcile hooks: ask a provider whether an effect in doubt happened.

Not here: verdicts (`core/verdict.py`), and when a hook is called (`ledger/run.py`).
Start with `http_get.py`; `evidence.py` has the rules that all hooks share. `http_get` and `stripe` need the extra
`client`, and `s3_object` the extra `s3`.
"""

from onceward.reconcile.http_get import http_get
from onceward.reconcile.s3_object import s3_object
from onceward.reconcile.stripe import stripe

__all__ = ["http_get", "s3_object", "stripe"]
