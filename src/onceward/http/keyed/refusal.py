"""Refusals: the problem response to a keyed request that admission neither runs nor replays."""

from __future__ import annotations

from typing import assert_never

from onceward.core.claim import Busy, Expired, InDoubt, Mismatch
from onceward.http import problem
from onceward.http.keyed.admission import PrincipalChanged, TooManyKeys, retry_seconds
from onceward.http.problem import Response


def refusal_of(found: Busy | Mismatch | InDoubt | Expired | PrincipalChanged | TooManyKeys) -> Response:
    """Return the response that refuses a request, for what admission found under its key."""
    match found:
        case Busy():
            return problem.busy(retry_seconds(found))
        case Mismatch():
            return problem.mismatch()
        case PrincipalChanged():
            return problem.principal_changed()
        case InDoubt():
            return problem.in_doubt()
        case Expired():
            return problem.expired()
        case TooManyKeys(seconds):
            return problem.too_many_keys(seconds)
        case _:
            assert_never(found)
