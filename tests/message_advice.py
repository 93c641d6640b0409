"""The advice for each code of docs/messages.md, for a caller or an operator."""

from __future__ import annotations

from onceward.http.problem import CODES

STATUS_CODES = CODES

ADVICE = {
    # Exceptions of Onceward, which the hub turns into problems.
    "already-there": "Choose another name, or pass the option that replaces the existing one.",
    "blob-missing": "Run `onceward admin fsck` to find every attachment whose bytes are missing, and restore them from a backup.",
    "busy": "Another caller is still running this key. Wait for the time in `Retry-After`, then send the same key again.",
    "claim-lost": "Another holder took over this claim. Roll back, and use the outcome that the other holder recorded.",
    "conflict": "Read the current state, then decide whether to send a different request.",
    "events-lost": "The log no longer has these events. Load the current state, then follow from the oldest event.",
    "expired": "The retention time is over. Upload or create it again.",
    "forbidden": "Use a token that has the scope that the text names.",
    "hub-unavailable": "Check that the hub runs at this address. Retry with the same key.",
    "in-doubt": (
        "The effect may or may not have happened, and Onceward does not repeat it. Find out, then run"
        " `onceward claims resolve`."
    ),
    "inside-bound-transaction": "End the bound transaction before you call the ledger again, or use another ledger.",
    "invalid-config": "Correct the setting that the text names, then start again.",
    "invalid-input": "Correct the field that the text names. Nothing was written.",
    "invalid-key": "Correct the key, the scope or the argument that the text names. Nothing ran.",
    "invalid-option": "Correct the option in the code or on the command line. Nothing ran.",
    "invalid-store-url": "Correct the URL, or install the driver that the text names.",
    "key-reused": "Send the request that this key was first used with, or choose a new key for a new request.",
    "not-done": "Nothing happened. Correct the cause and call again with the same key.",
    "not-found": "Check the id. Nothing was written.",
    "not-guarded": "Add the idempotency middleware around this handler.",
    "onceward": "Read the text. The code of the cause is in the exception that this one is raised from.",
    "other-log": "The hub has a new database. Load the current state, then follow without a cursor.",
    "outcome-not-kept": "The effect happened once. Read its result from the system that it changed.",
    "schema-too-new": "Upgrade Onceward on this machine.",
    "store-closed": "Open the ledger or the client again.",
    "store-misconfigured": "Correct the cause that the log names. A retry does not help.",
    "store-not-durable": "Configure the server as the text says, or use another store for this effect.",
    "store-unavailable": "Retry with the same key. The write may or may not have been applied; the key makes the retry safe.",
    "superseded": "Do nothing. The call was not made, and a newer turn has taken over the work.",
    "too-large": "Send less. The text names the limit.",
    "too-many-requests": "Wait for the time in `Retry-After`, then send the same request again.",
    "transaction-conflict": "Roll back, and try again in a new transaction.",
    "unauthorized": "Send a valid token. `onceward token list` lists the tokens of the hub.",
    "unexpected-answer": "Check that the address belongs to a hub, and that the client and the hub have compatible versions.",
    "write-refused": "The database rejects this data, and a retry does not help. Correct the data. Nothing was written.",
    # Problems that the middleware and the hub answer themselves.
    "badRequest": "Correct the request as `detail` and `errors` say. Nothing was written.",
    "headersTooLarge": "Send fewer or shorter headers.",
    "internal": "Report it with the `X-Request-ID` of the response. The log has the traceback under the same id.",
    "interrupted": "Retry with the same key.",
    "notFound": "Check the URL.",
    "methodNotAllowed": "Use a method that the header `Allow` names.",
    "outcome-unknown": "Read the state of the system that the request changes before you send it with a new key.",
    "payloadTooLarge": "Send less. `detail` names the limit.",
    "principal-changed": "Send the cookies that the key was first used with. The server's operator can set `principal=`.",
    "rangeNotSatisfiable": "Ask for a range inside the size that `Content-Range` names.",
    "tooManyRequests": "Wait for the time in `Retry-After`, then send the same request again.",
    "unavailable": "Wait for the time in `Retry-After`, then send the same request with the same key.",
    "unprocessable": "Send the request that this key was first used with, or choose a new key for a new request.",
    "unsupportedMediaType": "Send a media type that `detail` names.",
    # Exceptions without a code of their own: they are mistakes in the calling code, or the hub turns them into problems.
    "AssertionError": "This is a bug in Onceward, in a store, or in a test. Report it with the traceback.",
    "AttributeError": "Correct the name.",
    "BadParameter": "Correct the option. `--help` describes it.",
    "BusyLoadingError": "Onceward tries again by itself.",
    "ConnectionAbortedError": "Onceward connects again by itself.",
    "ConnectionResetError": "Onceward connects again by itself.",
    "FileNotFoundError": "Create the folder, or choose another one.",
    "HTTPException": "Correct the request as the text says.",
    "Malformed": "The hub stores the archive's bytes, but cannot list its entries. Check the file.",
    "ModuleNotFoundError": "Install the extra that the text names.",
    "NonRetryableException": "The workflow engine does not try this again.",
    "PermissionError": "Give this user access, or choose another folder.",
    "RuntimeError": "Correct the calling code as the text says.",
    "TimeoutError": "Onceward connects again by itself.",
    "TypeError": "Correct the calling code as the text says.",
    "Unkeepable": "The ledger settles the key without the value. Return a value that can be stored.",
    "Undelivered": "The engine delivers the response again by itself.",
    "UsageError": "Correct the command line. `--help` describes it.",
    "ValueError": "Correct the value that the text names.",
}
