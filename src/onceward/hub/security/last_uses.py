"""The time of each token's last use, to the hour: at most one write per token and hour, and none that a request waits for."""

from __future__ import annotations

import logging

from onceward.core.log_event import log_event
from onceward.errors import StoreClosed
from onceward.hub.db.engine import Database
from onceward.hub.db.timestamps import now_text
from onceward.hub.security import tokens

logger = logging.getLogger("onceward.hub")

# The length of a timestamp up to its hour, as in `2026-11-16T03`.
_HOUR_CHARACTERS = 13
_REST_OF_HOUR = ":00:00.000000Z"


class LastUses:
    """Uses of tokens in one process. A failed write is not repeated within the hour."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The hour that was written last, by token id.
        self._written: dict[str, str] = {}

    def record(self, token: tokens.Token) -> None:
        """Record that a token was used now, unless this hour is already recorded."""
        hour = now_text()[:_HOUR_CHARACTERS]
        if (token.last_used_at or "")[:_HOUR_CHARACTERS] >= hour or self._written.get(token.token_id) == hour:
            return
        self._written[token.token_id] = hour
        try:
            self._database.writer.post(
                lambda tx: tokens.set_last_use(tx, token.token_id, hour + _REST_OF_HOUR), _log_failure
            )
        except StoreClosed:
            # The hub stops. The next use records it.
            return


def _log_failure(error: BaseException) -> None:
    log_event(logger.warning, "last_use_not_recorded", reason=str(error))
