# One word per job. Each sets up what it needs; only Python 3.11+, make and the package registries are assumed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REPLICAS ?=
POLICY ?= locality

.DEFAULT_GOAL := help
.PHONY: help setup serve demo test check format bench bench-cost docs clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## the virtual environment with everything

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "prefix-router needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

serve: setup ## the router alone: REPLICAS=http://a:8000,… make serve
	@test -n "$(REPLICAS)" || { echo 'say where the replicas are: REPLICAS=http://10.0.0.1:8000,http://10.0.0.2:8000 make serve'; exit 2; }
	$(BIN)/prefix-router serve --replicas $(REPLICAS) --policy $(POLICY)

demo: setup ## round robin against locality on four simulated replicas
	$(BIN)/python -m bench.demo

test: setup ## all tests, real llama.cpp replicas included
	$(BIN)/python -m pytest

check: setup ## format, lint, types, import rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## put the code in shape
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: setup ## the cost of the parts, under a minute
	$(BIN)/python -m bench.micro

bench-cost: setup ## CPU per request beside other routers (25 minutes)
	$(BIN)/python -m bench.cost

docs: setup ## write the generated pages again
	$(BIN)/python -m router.cli.docs

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
