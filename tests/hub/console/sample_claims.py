"""Operations in every state, written with a second ledger on the hub's data."""

from __future__ import annotations

from onceward.core.claim import Claim
from onceward.core.outcome import Outcome
from onceward.ledger import Ledger

# A name that runs script if it is not escaped anywhere: in text, in an attribute, in a URL, in a script.
HOSTILE = "\"'><img src=x onerror=alert(1)><script>alert(1)</script>{{7*7}}"


def doubt(ledger: Ledger, key: str, scope: str = "http:user:ada", endpoint: str = "POST /pay", note: str = "") -> Claim:
    """Put an operation in doubt."""
    claim = begin(ledger, key, scope, endpoint=endpoint, repeatable=False)
    assert ledger.blocking.doubt(claim, note)
    return claim


def begin(
    ledger: Ledger, key: str, scope: str = "http:user:ada", *, endpoint: str = "POST /pay", repeatable: bool = True
) -> Claim:
    user = scope.rpartition(":")[2]
    claim = ledger.blocking.begin(scope, key, {"key": key}, repeatable=repeatable, user_id=user, endpoint=endpoint)
    assert isinstance(claim, Claim)
    return claim


def settle(ledger: Ledger, key: str, scope: str = "charges", body: bytes = b'{"charge":"ch_1"}') -> Claim:
    claim = begin(ledger, key, scope)
    assert ledger.blocking.settle(claim, Outcome(body=body))
    return claim
