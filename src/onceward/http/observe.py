"""What an operator sees of the checks: metrics, log events and attributes of the current trace span.

Nothing has to be installed for it: prometheus-client and opentelemetry-api are fed where they are found. A key appears
in logs and traces only cut: it is half of what is needed to ask for somebody's response again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from onceward.core.key import KEY_CHARACTERS_SHOWN
from onceward.core.log_event import LogEvent
from onceward.errors import InvalidOption

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from onceward.http.metrics import Counts, Metrics

LOGGER = "onceward.http"

_log = logging.getLogger(LOGGER)


def log(level: int, name: str, **fields: object) -> None:
    """Log an event with its fields, both in its message and as attributes of its record."""
    _log.log(level, LogEvent(name, fields), extra=fields, stacklevel=2)


class Observer:
    """Tells metrics, log and trace what the checks found.

    `metrics`: True counts in prometheus-client's default registry if that package is installed, a registry counts
    there, False counts nowhere. Observers with one registry share its counts.
    """

    __slots__ = ("_counts", "_current_span")

    def __init__(self, metrics: Metrics = True) -> None:
        self._counts = _counts(metrics)
        self._current_span = _current_span()

    def checked(
        self, key: str, status: str, *, cached: bool, seconds: float, key_type: str = "client_provided"
    ) -> None:
        """A key was looked up. `cached` says that the answer is a kept response, `seconds` how long the check took."""
        if self._counts is not None:
            self._counts.checked(status, key_type, cached, seconds)
        if self._current_span is not None:
            span = self._current_span()
            if span.is_recording():
                span.set_attributes(
                    {
                        "idempotency.key": _cut(key),
                        "idempotency.status": status,
                        "idempotency.replayed": cached,
                    }
                )
        if _log.isEnabledFor(logging.INFO):
            shown = _cut(key)
            log(logging.INFO, "idempotency_check", idempotency_key=shown, status=status, cached=cached)
            if cached:
                log(logging.INFO, "idempotent_cache_hit", idempotency_key=shown)

    def put_in_doubt(self, key: str) -> None:
        """The operation ended without anyone knowing whether it was carried out, and may not be repeated."""
        if self._counts is not None:
            self._counts.put_in_doubt()
        log(logging.WARNING, "idempotency_in_doubt", idempotency_key=_cut(key))

    def store_failed(self, key: str, *, proceeded: bool) -> None:
        """The store did not answer. `proceeded` says that the request ran all the same, unprotected."""
        answer = "proceeded" if proceeded else "refused"
        if self._counts is not None:
            self._counts.store_failed(answer)
        log(logging.ERROR, "idempotency_store_failure", idempotency_key=_cut(key), answer=answer)


def _cut(key: str) -> str:
    return key[:KEY_CHARACTERS_SHOWN] + "..."


def _counts(metrics: Metrics) -> Counts | None:
    if metrics is False:
        return None
    try:
        from onceward.http.metrics import counts_in  # noqa: PLC0415  # needs a package that not everyone has
    except ModuleNotFoundError as error:
        if metrics is True:
            return None
        raise InvalidOption("a registry in metrics= needs its package: pip install 'onceward[metrics]'") from error
    return counts_in(metrics)


def _current_span() -> Callable[[], Span] | None:
    try:
        from opentelemetry import trace  # noqa: PLC0415  # never a dependency: whoever traces has it
    except ImportError:
        return None
    return trace.get_current_span
