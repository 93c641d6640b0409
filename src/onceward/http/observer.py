"""Metrics, log events and trace attributes for checks of idempotency keys.

prometheus-client and opentelemetry-api are optional: they are used if they are installed. Logs and traces show only the
beginning of a key, because a key and its credentials are enough to ask for the response again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from onceward.core.key import KEY_CHARACTERS_SHOWN
from onceward.core.log_event import log_event
from onceward.errors import InvalidOption, install_command

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from onceward.http.metrics import Counts, Metrics

LOGGER = "onceward.http"
# The status of a check of a new key above `max_keys_per_principal`. The others are in `CHECK_STATUS`.
TOO_MANY_KEYS = "too_many_keys"

_log = logging.getLogger(LOGGER)


class HttpObserver:
    """Reporter of the results of checks to metrics, log and trace.

    Args:
        metrics: The registry of prometheus-client to count in. True is the default registry if that package is
            installed, and False counts nothing. Observers with the same registry share its counts.

    Raises:
        InvalidOption: `metrics` is not a registry, prometheus-client is not installed, or the registry already has a
            metric with one of the names.
    """

    __slots__ = ("_counts", "_current_span")

    def __init__(self, metrics: Metrics = True) -> None:
        self._counts = _counts(metrics)
        self._current_span = _current_span()

    def checked(
        self, key: str, status: str, *, cached: bool, seconds: float, key_type: str = "client_provided"
    ) -> None:
        """Report a check of a key, which took `seconds`. `cached`: the client gets a stored response."""
        if self._counts is not None:
            self._counts.checked(status, key_type, cached, seconds)
        if self._current_span is not None:
            span = self._current_span()
            if span.is_recording():
                span.set_attributes(
                    {
                        "idempotency.key": _shortened(key),
                        "idempotency.status": status,
                        "idempotency.replayed": cached,
                    }
                )
        if _log.isEnabledFor(logging.INFO):
            shown = _shortened(key)
            log_event(_log.info, "idempotency_check", idempotency_key=shown, status=status, cached=cached)
            if cached:
                log_event(_log.info, "idempotent_cache_hit", idempotency_key=shown)

    def put_in_doubt(self, key: str) -> None:
        """Report an operation in doubt: it may have been carried out, and must not be repeated."""
        if self._counts is not None:
            self._counts.put_in_doubt()
        log_event(_log.warning, "idempotency_in_doubt", idempotency_key=_shortened(key))

    def store_failed(self, key: str, *, proceeded: bool) -> None:
        """Report that the store was unavailable. `proceeded`: the request ran anyway, unprotected."""
        answer = "proceeded" if proceeded else "refused"
        if self._counts is not None:
            self._counts.store_failed(answer)
        log_event(_log.error, "idempotency_store_failure", idempotency_key=_shortened(key), answer=answer)


def _shortened(key: str) -> str:
    return key[:KEY_CHARACTERS_SHOWN] + "..."


def _counts(metrics: Metrics) -> Counts | None:
    if metrics is False:
        return None
    try:
        from onceward.http.metrics import counts_in  # noqa: PLC0415  # needs an optional package
    except ModuleNotFoundError as error:
        if metrics is True:
            return None
        raise InvalidOption(f"metrics= needs prometheus-client: {install_command('metrics')}") from error
    return counts_in(metrics)


def _current_span() -> Callable[[], Span] | None:
    try:
        from opentelemetry import trace  # noqa: PLC0415  # never a dependency: programs that trace have it
    except ImportError:
        return None
    return trace.get_current_span
