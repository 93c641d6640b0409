# Everything runs from these few targets; each makes the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEEDS ?= 20000

# Tests start hundreds of processes: each would compile every module anew.
export PYTHONDONTWRITEBYTECODE =

# What tests write has to outlive processes, not the machine: it goes into memory where there is room for it (they need 3 GB)
# and programs may run there. The soaks and the bench stay on the disk.
SCRATCH := $(shell awk '$$2 == "/dev/shm" && $$4 !~ /noexec/' /proc/mounts 2>/dev/null | grep -q . && test -w /dev/shm \
  && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 6000000 {print "TMPDIR=/dev/shm"}')

.PHONY: help venv serve test test-everywhere lint format simulate soak-http soak-hub soak-events soak-turns soak-ingest soak-blobs bench test-pythons requirements clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(STAMP): requirements/dev.txt pyproject.toml
	@echo "onceward: making $(VENV) and installing the pinned requirements (about half a minute)"
	@$(PYTHON) -c 'import sys; sys.exit("onceward needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip --disable-pip-version-check check
	@touch $@

venv: $(STAMP) ## Make .venv with everything pinned in it.

serve: $(STAMP) ## Run the hub on http://127.0.0.1:8787 (SQLite files in ./onceward-data, no other service).
	@$(BIN)/onceward serve

lint: $(STAMP) ## Format check, lint and types.
	@echo "onceward: ruff format, ruff check, mypy --strict"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: $(STAMP) ## Rewrite the code in the house format.
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

test: lint ## Lint, types, and the whole suite with coverage; starts and stops its own servers.
	@echo "onceward: tests (starts its own PostgreSQL and Redis on loopback; takes a few minutes)"
	@$(SCRATCH) $(BIN)/python -W "ignore:Unable to activate pytest branch" -m slipcover -m pytest -n 3 --dist loadgroup

test-everywhere: $(STAMP) ## The HTTP behaviour suite in full: each test on every framework with every store it can run on.
	@echo "onceward: HTTP behaviour in full (three minutes on two cores with nothing else to do)"
	@ONCEWARD_EVERYWHERE=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -q tests/http/behaviour

simulate: $(STAMP) ## Run the simulator over SEEDS seeds (make simulate SEEDS=100000).
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS)

soak-http: $(STAMP) ## HTTP workers under load and kill -9, on PostgreSQL and Redis (make soak-http SECONDS=60).
	@$(BIN)/python -m tests.http.fire --seconds $(or $(SECONDS),60)

soak-hub: $(STAMP) ## A hub under load and kill -9, on SQLite, PostgreSQL and Redis (make soak-hub SECONDS=60).
	@$(BIN)/python -m tests.hub.fire --seconds $(or $(SECONDS),60)

soak-turns: $(STAMP) ## Two hubs on one PostgreSQL with 200 sessions, under kill -9 (make soak-turns SECONDS=30).
	@$(BIN)/python -m tests.turns.fire --seconds $(or $(SECONDS),30)

soak-blobs: $(STAMP) ## The collection against four uploaders of the same contents (make soak-blobs SECONDS=60).
	@$(BIN)/python -m tests.tasks.fire --seconds $(or $(SECONDS),60)

soak-events: $(STAMP) ## Clients 100,000 events behind, and one of 200 that does not read, on SQLite and PostgreSQL.
	@ONCEWARD_BEHIND=100000 ONCEWARD_CLIENTS=200 $(BIN)/python -m pytest -q tests/events/test_resuming.py tests/events/test_stalled.py

soak-ingest: $(STAMP) ## Two backfills of the same 20,000 messages at once, and one that is killed, on SQLite and PostgreSQL.
	@ONCEWARD_BACKFILL=20000 $(BIN)/python -m pytest -q tests/ingest/fire

bench: $(STAMP) ## Measure us beside the raw ceiling and the peers; writes bench/results.md and .svg.
	@$(BIN)/python -m bench

test-pythons: ## Run the suite on every Python 3.11-3.13 found on this machine.
	@for version in 3.11 3.12 3.13; do \
	  python=$$(command -v python$$version || ls $$HOME/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -1); \
	  if [ -z "$$python" ]; then echo "onceward: no Python $$version here, left out"; continue; fi; \
	  echo "onceward: the suite on Python $$version"; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done

requirements: $(STAMP) ## Compile requirements/*.in into pinned files with hashes (needs uv).
	@for name in dev peers; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done

clean: ## Remove the environments and everything a run leaves behind.
	@rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist onceward-data
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
