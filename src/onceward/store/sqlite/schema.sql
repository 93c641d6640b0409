-- The ledger's tables on SQLite. The columns of the HTTP contract come first; those that a claim needs follow.
-- Times are UTC text with six fractional digits, so that text order is time order and an operator can read them.

CREATE TABLE platform_idempotency_keys (
    scope            TEXT    NOT NULL,  -- namespace, layer and principal
    key              TEXT    NOT NULL,
    user_id          TEXT    NOT NULL,
    endpoint         TEXT    NOT NULL,
    status           TEXT    NOT NULL DEFAULT 'in_progress'
                     CHECK (status IN ('in_progress', 'completed', 'failed', 'in_doubt')),
    response_status  INTEGER,
    response_headers TEXT,
    response_body    BLOB,              -- NULL with response_chunks = 0: it happened, but its result was not stored
    response_chunks  INTEGER NOT NULL DEFAULT 0,
    created_at       TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    completed_at     TEXT,
    fingerprint      TEXT    NOT NULL,
    version          INTEGER NOT NULL,  -- the fencing token
    attempt          INTEGER NOT NULL,
    write_id         TEXT    NOT NULL,  -- id of the last write, so that a repeated write recognises itself
    holder           TEXT    NOT NULL,
    repeatable       INTEGER NOT NULL,
    lease_until      TEXT    NOT NULL,
    expires_at       TEXT,              -- when purge may delete it; NULL: never
    note             TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (scope, key)
);  -- with rowids: keys arrive in random order, and wide rows in key order would split pages all the time

CREATE INDEX idx_idempotency_keys_created ON platform_idempotency_keys (created_at);
CREATE INDEX idx_idempotency_keys_user ON platform_idempotency_keys (user_id);
-- For purge. Held claims are not in the index, because each would be added and removed again for nothing.
CREATE INDEX idx_idempotency_keys_expires ON platform_idempotency_keys (expires_at)
    WHERE status IN ('completed', 'failed');
-- Operators list unfinished entries; an index of only those stays small.
CREATE INDEX idx_idempotency_keys_open ON platform_idempotency_keys (status, scope, key)
    WHERE status IN ('in_progress', 'in_doubt');

CREATE TABLE platform_idempotency_chunks (
    scope TEXT    NOT NULL,
    key   TEXT    NOT NULL,
    seq   INTEGER NOT NULL,
    data  BLOB    NOT NULL,
    PRIMARY KEY (scope, key, seq)
) WITHOUT ROWID;

-- One row. The version of a new entry is above the floor, and purge raises the floor to the highest version that it
-- deletes. So versions of one key never repeat, and no claim has to write a counter.
CREATE TABLE platform_idempotency_meta (
    only           INTEGER PRIMARY KEY CHECK (only = 1),
    schema_version INTEGER NOT NULL,
    version_floor  INTEGER NOT NULL
);
