# Entry points for development. Each target creates the environment that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEEDS ?= 20000

# Write bytecode: tests start hundreds of processes, and each would compile every module again.
export PYTHONDONTWRITEBYTECODE =

# Files of tests have to survive processes, not the machine. They go to shared memory if it has room (tests need 3 GB) and
# allows running programs. The soaks and the benchmark stay on disk.
SCRATCH := $(shell awk '$$2 == "/dev/shm" && $$4 !~ /noexec/' /proc/mounts 2>/dev/null | grep -q . && test -w /dev/shm \
  && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 6000000 {print "TMPDIR=/dev/shm"}')

.PHONY: help venv serve check test test-library coverage layout messages test-everywhere console-screenshots lint format simulate soak-http soak-hub soak-events soak-turns soak-ingest soak-blobs bench test-pythons requirements clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(STAMP): requirements/dev.txt pyproject.toml
	@echo "onceward: creating $(VENV) and installing the pinned requirements (about half a minute)"
	@$(PYTHON) -c 'import sys; sys.exit("onceward needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip --disable-pip-version-check check
	@touch $@

venv: $(STAMP) ## Create .venv with the pinned requirements.

serve: $(STAMP) ## Run the hub on http://127.0.0.1:8787 (SQLite files in ./onceward-data, no other service).
	@$(BIN)/onceward serve

lint: $(STAMP) ## Check format, lint and types.
	@echo "onceward: ruff format, ruff check, mypy --strict"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: $(STAMP) ## Format the code, and fix lint errors that can be fixed automatically.
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

check: lint ## Run lint, type checks and the fast tests: pure tests and one store (a minute).
	@echo "onceward: fast tests (no servers)"
	@$(SCRATCH) $(BIN)/python -m pytest -q -n 2 --dist loadgroup --one-store @tests/fast.txt

test: lint ## Run lint, type checks and all tests; starts and stops its own servers.
	@echo "onceward: tests (starts its own PostgreSQL and Redis on loopback, and Chromium, which root installs with apt; takes a few minutes)"
	@$(SCRATCH) $(BIN)/python -m pytest -n 3 --dist loadgroup

test-library: ## Test the library alone, as on macOS and Windows: without the hub's packages and without servers.
	@echo "onceward: tests of the library, in an environment without the hub"
	@$(PYTHON) -m venv .venv-library
	@.venv-library/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/library.txt
	@.venv-library/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@.venv-library/bin/python -m pytest -q --one-store @tests/library.txt

coverage: $(STAMP) ## Run all tests, and report the lines and branches that they do not reach.
	@echo "onceward: tests with coverage (takes longer than make test)"
	@$(SCRATCH) $(BIN)/python -W "ignore:Unable to activate pytest branch" -m slipcover -m pytest -n 3 --dist loadgroup

messages: $(STAMP) ## Write docs/messages.md, the page of all messages, from the source.
	@$(BIN)/python -m tests.messages

layout: $(STAMP) ## Print the layout of the package: folders, modules, lines, entry points, imports between folders.
	@$(BIN)/python -m tests.layout

test-everywhere: $(STAMP) ## Run all HTTP behaviour tests, each on every framework with every store that it can run on.
	@echo "onceward: all HTTP behaviour tests (three minutes on two idle cores)"
	@ONCEWARD_EVERYWHERE=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -q tests/http/behaviour

console-screenshots: $(STAMP) ## Save pictures of every page of the console to console-screenshots/ (needs Chromium).
	@ONCEWARD_SCREENSHOTS=$(CURDIR)/console-screenshots $(BIN)/python -m pytest -q tests/hub/console/test_console.py

simulate: $(STAMP) ## Run the simulator over SEEDS seeds (make simulate SEEDS=100000).
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS)

soak-http: $(STAMP) ## Test HTTP workers under load and kill -9, on PostgreSQL and Redis (make soak-http SECONDS=60).
	@$(BIN)/python -m tests.faults.http --seconds $(or $(SECONDS),60)

soak-hub: $(STAMP) ## Test a hub under load and kill -9, on SQLite, PostgreSQL and Redis (make soak-hub SECONDS=60).
	@$(BIN)/python -m tests.faults.hub --seconds $(or $(SECONDS),60)

soak-turns: $(STAMP) ## Test two hubs on one PostgreSQL with 200 sessions, under kill -9 (make soak-turns SECONDS=30).
	@$(BIN)/python -m tests.faults.turns --seconds $(or $(SECONDS),30)

soak-blobs: $(STAMP) ## Test garbage collection against four uploaders of the same contents (make soak-blobs SECONDS=60).
	@$(BIN)/python -m tests.faults.tasks --seconds $(or $(SECONDS),60)

soak-events: $(STAMP) ## Test clients that are 100,000 events behind, and one of 200 that does not read, on SQLite and PostgreSQL.
	@ONCEWARD_BEHIND=100000 ONCEWARD_CLIENTS=200 $(BIN)/python -m pytest -q tests/hub/events/test_catch_up.py tests/hub/events/test_session_stalled.py

soak-ingest: $(STAMP) ## Test two concurrent backfills of the same 20,000 messages, and a killed one, on SQLite and PostgreSQL.
	@ONCEWARD_BACKFILL=20000 $(BIN)/python -m pytest -q tests/faults/ingest

bench: $(STAMP) ## Measure Onceward, the bare databases and comparable libraries; writes bench/results.md and .svg.
	@$(BIN)/python -m bench

test-pythons: ## Run all tests on every Python 3.11-3.14 found on this machine.
	@for version in 3.11 3.12 3.13 3.14; do \
	  python=$$(command -v python$$version || ls $$HOME/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -1); \
	  if [ -z "$$python" ]; then echo "onceward: no Python $$version on this machine, skipped"; continue; fi; \
	  echo "onceward: tests on Python $$version"; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done

requirements: $(STAMP) ## Compile requirements/*.in into pinned files with hashes (needs uv).
	@for name in dev library peers; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done

clean: ## Remove the environments and all generated files.
	@rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist onceward-data
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
