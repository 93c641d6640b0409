"""Names of the rows in the tables."""

from __future__ import annotations

MEMORY = "memory"
SQLITE = "SQLite FULL"
SQLITE_SLOW = "SQLite FULL, syncs slowed"
POSTGRES = "PostgreSQL"
REDIS_ALWAYS = "Redis, AOF always"
REDIS_EVERYSEC = "Redis, AOF everysec"
STORES = (MEMORY, SQLITE, POSTGRES, REDIS_ALWAYS, REDIS_EVERYSEC)
# Stores of `--quick`: those that need no server.
EMBEDDED = (MEMORY, SQLITE)
# Stores of the middleware. `everysec` is the default with `appendonly yes`; `always` is as durable as SQLite.
HTTP_STORES = (SQLITE, REDIS_EVERYSEC, REDIS_ALWAYS)
# Databases of the hub.
DATABASES = (SQLITE, POSTGRES)

AWAITED = "Onceward, awaited"
BLOCKING = "Onceward, blocking"
UNSHARED = "Onceward, a commit for each write"
BY_HAND = "two commits by hand"
BY_HAND_ROLLBACK = "two commits by hand, rollback journal"
BY_HAND_LEDGER = "two commits by hand, the ledger's table"
ALL_BY_HAND = (BY_HAND, BY_HAND_ROLLBACK, BY_HAND_LEDGER)
ONE_EACH = "one statement per call, one connection"
ONE_EACH_POOLED = "one statement per call, 16 connections"
DBOS = "DBOS"
DBOS_WAL = "DBOS, file set to WAL"
IDEMKIT = "idemkit"
CALL4AGENTS = "call4agents"

TURNS = "Onceward, an empty brain"
BARE_FUNCTION = "bare function"
PURE_TOOL = "Onceward, a pure tool"
TOOL = "Onceward, an idempotent tool"
DBOS_STEP = "DBOS step"
DBOS_STEP_WAL = "DBOS step, file set to WAL"
LANGGRAPH = "LangGraph task, thread resumed"
LANGGRAPH_FINISHED = "LangGraph task, thread finished"

NO_FRAMEWORK = "async function"
LANGCHAIN = "LangChain"
PYDANTIC_AI = "pydantic-ai"
OPENAI_AGENTS = "OpenAI Agents"
TOOL_ALONE = "alone"
ONCEWARD = "Onceward"
AGENT_ONCE = "agent-once"

BARE = "FastAPI, the route alone"
MIDDLEWARE = "FastAPI, Onceward"
PLAIN_BARE = "ASGI function, alone"
PLAIN_MIDDLEWARE = "ASGI function, Onceward"
PLAIN_DICT = "ASGI function, a dict by hand"
HTTP_IDEMKIT = "FastAPI, idemkit"
HTTP_HEADER = "FastAPI, asgi-idempotency-header"
HTTP_IDEMGATE = "FastAPI, idemgate"
HTTP_FASTAPI_IDEMPOTENCY = "FastAPI, fastapi-idempotency"
HTTP_POWERTOOLS = "FastAPI, Powertools"
HTTP_PEERS = (HTTP_IDEMKIT, HTTP_HEADER, HTTP_IDEMGATE, HTTP_FASTAPI_IDEMPOTENCY, HTTP_POWERTOOLS)

HUB_ONE = "Onceward, 1 worker"
HUB_TWO = "Onceward, 2 workers"
