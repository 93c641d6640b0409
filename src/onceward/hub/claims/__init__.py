"""Claims for operators: list claims, resolve a doubt, and set the response that a retry gets.

Not here: the claim state machine (`core/claim.py`), and the routes (`hub/routes/claims.py`).
Start with `claims.py`.
"""

__all__ = ["claims", "given_response"]
