# Entry points for development. Each target creates the environment that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Small environments of their own: the hub as `make serve` runs it, the build of the package, and the site.
HUB_STAMP := .venv-hub/.installed
BUILD_STAMP := .venv-build/.installed
DOCS_STAMP := .venv-docs/.installed
# One date for all files of the package, so that a clone, an archive and an unpacked sdist give the same bytes.
SOURCE_DATE_EPOCH ?= 1767225600
SEEDS ?= 20000
# For test-pythons: the versions, and the target to run on each.
PYTHONS ?= 3.11 3.12 3.13 3.14
RUN ?= test
# For test-backends. redis7 is the redis-server of this machine, because no wheel has it; the others are wheels.
REDISES ?= redis6 redis7 valkey
REDIS_TESTS := tests/store tests/contract tests/faults/processes tests/hub/doctor
S3S ?= rclone seaweedfs moto
S3_TESTS := tests/hub/blobs tests/hub/tasks tests/reconcile tests/faults/hub/test_store_failures.py tests/cli/test_backend.py
# The first container engine that is installed, and the image that ours starts from; empty: the one in the Dockerfile.
ENGINE ?= $(notdir $(firstword $(shell command -v docker podman buildah 2>/dev/null)))
BASE ?=

# Write bytecode: tests start hundreds of processes, and each would compile every module again.
export PYTHONDONTWRITEBYTECODE =

# Files of tests have to survive processes, not the machine. They go to shared memory if it has room (tests need 3 GB) and
# allows running programs. The soaks and the benchmark stay on disk.
SCRATCH := $(shell awk '$$2 == "/dev/shm" && $$4 !~ /noexec/' /proc/mounts 2>/dev/null | grep -q . && test -w /dev/shm \
  && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 6000000 {print "TMPDIR=/dev/shm"}')

.PHONY: help system-packages venv serve check test test-library coverage layout messages test-everywhere test-pooler lint format simulate soak-http soak-hub soak-events soak-turns soak-ingest soak-blobs bench test-pythons requirements clean test-backends audit fuzz image test-image test-alerts dist test-wheel test-uvx first-five docs check-links test-profiles console-screenshots test-loaded
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

$(BUILD_STAMP): requirements/build.txt
	@$(PYTHON) -m venv .venv-build
	@.venv-build/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/build.txt
	@touch $@

$(HUB_STAMP): requirements/serve.txt requirements/build.txt pyproject.toml
	@echo "onceward: creating .venv-hub with the hub's pinned requirements (a few seconds)"
	@$(PYTHON) -c 'import sys; sys.exit("onceward needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv .venv-hub
	@.venv-hub/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/serve.txt -r requirements/build.txt
	@.venv-hub/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

serve: $(HUB_STAMP) ## Run the hub on http://127.0.0.1:8787 (SQLite files in ./onceward-data, no other service).
	@.venv-hub/bin/onceward serve

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
	@$(SCRATCH) $(BIN)/python -m pytest -q -n 3 --dist worksteal --one-store --hypothesis-profile fast @tests/fast.txt

test: lint ## Run lint, type checks and all tests; starts and stops its own servers.
	@$(BIN)/python -m tests.servers.system_packages || true
	@echo "onceward: tests (starts its own PostgreSQL, Redis, Valkey and S3 servers on loopback, and Chromium; takes a few minutes)"
	@$(SCRATCH) $(BIN)/python -m pytest -n 3 --dist worksteal

system-packages: $(STAMP) ## Install programs that the tests need and no wheel has, with apt-get, if they are missing.
	@$(BIN)/python -m tests.servers.system_packages

test-library: ## Test the library alone, as on macOS and Windows: without the hub's packages and without servers.
	@echo "onceward: tests of the library, in an environment without the hub"
	@$(PYTHON) -m venv .venv-library
	@.venv-library/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/library.txt
	@.venv-library/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@.venv-library/bin/python -m pytest -q --one-store @tests/library.txt

dist: $(BUILD_STAMP) ## Build the wheel and the sdist into dist/, the same bytes each time.
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) .venv-build/bin/python -m hatchling build >/dev/null
	@cd dist && for file in *; do ../.venv-build/bin/python -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest(), sys.argv[1])' "$$file"; done

test-wheel: dist ## Test the library in a fresh environment that has the built wheel, not the source (WHOLE=1: the whole suite).
	@echo "onceward: tests of the installed wheel"
	@rm -rf .venv-wheel && $(PYTHON) -m venv .venv-wheel
	@.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/$(if $(WHOLE),dev,library).txt
	@.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index dist/*.whl
	@.venv-wheel/bin/python -c 'import onceward, sys; sys.exit(0 if "site-packages" in onceward.__file__ else "onceward: the tests would run the source: " + onceward.__file__)'
	@$(if $(WHOLE),$(SCRATCH)) .venv-wheel/bin/python -m pytest -q $(if $(WHOLE),-n 3 --dist worksteal,--one-store @tests/library.txt)

test-uvx: dist ## Run `onceward demo` from the built wheel with uv, in an environment that uv creates (needs uv).
	@command -v uv >/dev/null || { echo "onceward: uv is not installed; see https://docs.astral.sh/uv/" >&2; exit 1; }
	@NO_COLOR=1 uv tool run --isolated --from "$$(echo dist/*.whl)[hub]" onceward demo

first-five: ## Follow the README from a clone to the first replayed request, in fresh environments; prints time and size.
	@$(PYTHON) -m tests.first_five

$(DOCS_STAMP): requirements/docs.txt
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/docs.txt
	@touch $@

docs: $(DOCS_STAMP) ## Build the documentation site in build/site, and follow every link in it, offline.
	@.venv-docs/bin/python docs/build_site.py

check-links: ## Follow the links of the documents to other sites (needs the network).
	@$(PYTHON) docs/check_links.py

coverage: $(STAMP) ## Run all tests, and report the lines and branches that they do not reach.
	@$(BIN)/python -m tests.servers.system_packages || true
	@echo "onceward: tests with coverage (takes longer than make test)"
	@$(SCRATCH) $(BIN)/python -W "ignore:Unable to activate pytest branch" -m slipcover -m pytest -n 3 --dist worksteal

messages: $(STAMP) ## Write docs/messages.md, the page of all messages, from the source.
	@$(BIN)/python -m tests.messages

layout: $(STAMP) ## Print the layout of the package: folders, modules, lines, entry points, imports between folders.
	@$(BIN)/python -m tests.layout

test-everywhere: $(STAMP) ## Run all HTTP behaviour tests, each on every framework with every store that it can run on.
	@echo "onceward: all HTTP behaviour tests (three minutes on two idle cores)"
	@ONCEWARD_EVERYWHERE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/http/behaviour

test-pooler: $(STAMP) system-packages ## Run the whole store contract through pgbouncer, and the tests of poolers and connections.
	@echo "onceward: all tests behind a connection pooler"
	@ONCEWARD_POOLER=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/store/postgres/test_pooler.py tests/store/postgres/test_pooler_contract.py tests/hub/db/postgres tests/hub/events/test_notifications_pooled.py tests/faults/hub/test_pooler.py tests/faults/hub/test_connections.py

test-backends: $(STAMP) ## Run the tests of the Redis store on each of REDISES, and those of S3 on each of S3S.
	@for server in $(REDISES); do \
	  echo "onceward: tests of the Redis store on $$server"; \
	  ONCEWARD_REDIS=$$server $(SCRATCH) $(BIN)/python -m pytest -n 2 --dist worksteal -q -k redis $(REDIS_TESTS) || exit 1; \
	done
	@for server in $(S3S); do \
	  echo "onceward: tests of S3 on $$server"; \
	  ONCEWARD_S3=$$server ONCEWARD_LISTED=1100 $(SCRATCH) $(BIN)/python -m pytest -n 2 --dist worksteal -q -k s3 $(S3_TESTS) || exit 1; \
	done

test-profiles: $(STAMP) ## Run the conformance tables of all profiles, and all webhook senders, on every framework and store.
	@echo "onceward: profiles and webhooks, in full (a few minutes)"
	@ONCEWARD_EVERYWHERE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/http/behaviour/test_profiles.py tests/http/behaviour/test_webhooks.py tests/http/behaviour/test_retrying_clients.py

console-screenshots: $(STAMP) system-packages ## Save pictures of every page of the console to console-screenshots/ (needs Chromium).
	@ONCEWARD_SCREENSHOTS=$(CURDIR)/console-screenshots $(BIN)/python -m pytest -q tests/hub/console/test_pages_in_browser.py

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

test-pythons: ## Run all tests on each of PYTHONS, by default 3.11 to 3.14; a missing one is an error (RUN=check: fast tests).
	@found=$$($(PYTHON) -m tests.pythons $(PYTHONS)) || exit 1; \
	for python in $$found; do \
	  echo "onceward: make $(RUN) on Python $${python%%=*}"; \
	  $(MAKE) --no-print-directory $(RUN) PYTHON=$${python#*=} VENV=.venv-$${python%%=*} || exit 1; \
	done

test-loaded: ## Run all tests RUNS times, two runs at once, to find tests that depend on luck (make test-loaded RUNS=10).
	@$(PYTHON) -m tests.loaded_runs --runs $(or $(RUNS),10)

audit: $(STAMP) ## Check every pinned package for known vulnerabilities; fails if one cannot be checked (make audit ADVISORIES=folder).
	@$(BIN)/python -m tests.advisories $(if $(ADVISORIES),--advisories "$(ADVISORIES)")

fuzz: $(STAMP) ## Send mutated bytes to every parser of external input (make fuzz SECONDS=10 for each, TARGET=name for one).
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),10) $(TARGET)

image: ## Build the container image of the hub (make image ENGINE=podman BASE=python@sha256:…).
	@test -n "$(ENGINE)" || { echo "onceward: no container engine found; install docker, podman or buildah, or set ENGINE" >&2; exit 1; }
	$(ENGINE) build $(if $(BASE),--build-arg BASE=$(BASE)) --tag onceward .

test-image: $(STAMP) ## Build the image with buildah, and test it: its user, its health check, its end (needs root and buildah).
	@$(BIN)/python -m tests.ops.image $(if $(BASE),--base $(BASE))

test-alerts: $(STAMP) ## Let each alert fire in a real Prometheus, from a real hub in the condition (needs prometheus and promtool).
	@$(BIN)/python -m tests.ops.prometheus

requirements: $(STAMP) ## Compile requirements/*.in into pinned files with hashes (needs uv).
	@for name in dev library peers hub serve build docs; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done

clean: ## Remove the environments and all generated files.
	@rm -rf .venv .venv-* .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist onceward-data
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
