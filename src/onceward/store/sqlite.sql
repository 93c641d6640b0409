-- The ledger's tables on SQLite. The seed's columns come first; what the claim needs follows.
-- Times are UTC text with six digits of fraction, so that text order is time order and an operator can read them.

CREATE TABLE platform_idempotency_keys (
    scope            TEXT    NOT NULL,  -- namespace, layer and principal
    key              TEXT    NOT NULL,
    user_id          TEXT    NOT NULL,
    endpoint         TEXT    NOT NULL,
    status           TEXT    NOT NULL DEFAULT 'in_progress'
                     CHECK (status IN ('in_progress', 'completed', 'failed', 'in_doubt')),
    response_status  INTEGER,
    response_headers TEXT,
    response_body    BLOB,              -- NULL with response_chunks = 0: it happened, its result was not kept
    response_chunks  INTEGER NOT NULL DEFAULT 0,
    created_at       TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    completed_at     TEXT,
    fingerprint      TEXT    NOT NULL,
    version          INTEGER NOT NULL,  -- the fencing token
    attempt          INTEGER NOT NULL,
    write_id         TEXT    NOT NULL,  -- of the last write, so that a repeated write knows itself
    holder           TEXT    NOT NULL,
    repeatable       INTEGER NOT NULL,
    lease_until      TEXT    NOT NULL,
    expires_at       TEXT,              -- when purge may take it; NULL: never
    note             TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (scope, key)
);  -- with rowids: keys come in no order, and wide rows in key order would split pages all the time

CREATE INDEX idx_idempotency_keys_created ON platform_idempotency_keys (created_at);
CREATE INDEX idx_idempotency_keys_user ON platform_idempotency_keys (user_id);
-- What purge walks. Claims that are being worked on are left out: they would be moved twice for nothing.
CREATE INDEX idx_idempotency_keys_expires ON platform_idempotency_keys (expires_at)
    WHERE status IN ('completed', 'failed');
-- Operators ask for what is unfinished; an index of those alone stays small.
CREATE INDEX idx_idempotency_keys_open ON platform_idempotency_keys (status, scope, key)
    WHERE status IN ('in_progress', 'in_doubt');

CREATE TABLE platform_idempotency_chunks (
    scope TEXT    NOT NULL,
    key   TEXT    NOT NULL,
    seq   INTEGER NOT NULL,
    data  BLOB    NOT NULL,
    PRIMARY KEY (scope, key, seq)
) WITHOUT ROWID;

-- One row. A new entry's version starts above the floor, and purge raises the floor to what it deletes, so that
-- versions of one key never repeat, without a counter that every claim would have to write.
CREATE TABLE platform_idempotency_meta (
    only           INTEGER PRIMARY KEY CHECK (only = 1),
    schema_version INTEGER NOT NULL,
    version_floor  INTEGER NOT NULL
);
