# Needs git, make and Python 3.11 or 3.12; everything else goes into .venv, from requirements.lock.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PEERS := .venv-peers
CODE := audits clustmix flows tasks privacy storage

.PHONY: help install release server server-stop test integration audit soak e2e lint types bench peers house lock clean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv and install the locked packages and this project (once)
	@:

$(BIN)/python:
	@for candidate in python3.12 python3.11 python3; do \
	  if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
	      2>/dev/null; then \
	    echo "creating $(VENV) with $$($$candidate --version)"; \
	    $$candidate -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); \
	    echo "error: $$candidate could not create $(VENV); its venv module may be a package of its own (on Debian: python3-venv)" >&2; \
	    exit 1; \
	  fi; \
	done; \
	echo "error: expected Python 3.11 or 3.12 (python3.12, python3.11 or python3 on the PATH), found none" >&2; \
	exit 1

$(STAMP): requirements.lock pyproject.toml | $(BIN)/python
	@echo "installing the packages of requirements.lock (a few minutes, once)"
	@$(PIP) install --no-deps --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

release: $(STAMP) ## Make a synthetic release of a public hospital table, end to end
	@$(BIN)/clustmix release deployments/sites/diabetes130-readmission.yaml \
	  --fallback deployments/sites/breast-cancer.yaml

server: $(STAMP) ## Start every part of an installation on this machine and print addresses
	@$(BIN)/clustmix server start

server-stop: $(STAMP) ## Stop what `make server` has started
	@$(BIN)/clustmix server stop

# By file, in the order of pyproject.toml.
PARALLEL := --dist loadfile --no-loadscope-reorder -n

test: $(STAMP) ## Run the tests
	@$(BIN)/python -m pytest -q $(PARALLEL) $$(nproc)

# One process more than there are processors: these tests wait for servers and workers.
integration: $(STAMP) ## Test against a real orchestrator, and watch whole runs from outside
	@$(BIN)/python -m pytest -q $(PARALLEL) $$(( $$(nproc) + 1 )) -m "integration and not soak" tests

audit: $(STAMP) ## Attack every method for about an hour; numbers and plot in audit-output
	@$(BIN)/python -m pytest -q -m audit tests/audits
	@$(BIN)/python -m audits audit-output

soak: $(STAMP) ## Kill, crowd and starve releases for about fifty minutes (SQLite and PostgreSQL)
	@$(BIN)/python -m pytest -q -m soak tests

e2e: $(STAMP) ## Run whole installations, with server and kills, for about 20 minutes
	@$(BIN)/python -m pytest -q -m e2e tests/e2e

lint: $(STAMP) ## Check format, style and what imports what
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache --no-logo

types: $(STAMP) ## Check types
	@$(BIN)/mypy

bench: $(STAMP) ## Measure what has no row yet, and write the report (SUITE=quick: minutes)
	-@$(BIN)/python -m benchmarks run $(if $(SUITE),--suite $(SUITE))
	@$(BIN)/python -m benchmarks report

# Each peer has packages of its own, which are not those of the lock; they need Python 3.11.
PEER_FILES := $(wildcard benchmarks/peers-*.txt)

$(PEERS)/%/.installed: benchmarks/peers-%.txt
	@python3.11 -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check -qq install --no-deps -r $<
	@touch $@

peers: $(PEER_FILES:benchmarks/peers-%.txt=$(PEERS)/%/.installed) ## Install programs of others that benchmarks run beside ours
	@:

house: $(STAMP) ## Count lines, arrows between folders and what is handed on whole
	@$(BIN)/python -m benchmarks.house --list

lock: ## Write requirements.lock anew from pyproject.toml (needs uv on the PATH)
	@uv pip compile pyproject.toml --extra server --extra distill --extra rivals --extra audit --extra s3 --extra hospital --group dev \
	  --output-file requirements.lock \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes \
	  --no-strip-extras --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet

clean: ## Remove .venv and caches; releases and the budget ledger stay
	@rm -rf $(VENV) $(PEERS) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find $(CODE) tests -name __pycache__ -type d -prune -exec rm -rf {} +
