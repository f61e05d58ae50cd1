# The two commands a newcomer needs: `make demo` and `make test`. Both prepare .venv first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Build environments obey the constraints too, not only the final one.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Two test processes with two threads each on two cores are far slower than with one each.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo test test-slow test-machines lint format types clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(STAMP) ## Make .venv and install isogon with its development tools (quick when nothing changed)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "isogon needs Python 3.11 or newer; $(PYTHON) is older: call make PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing isogon and its development tools into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install -qq --editable '.[dev]'
	@touch $@

demo: setup ## A tour of a few minutes: find a weight decay on 1/8 of the data, carry it to all of it
	@$(BIN)/isogon demo

# A test that hangs ends with its name, not with the hours of whoever waits.
test: setup lint types ## Everything CI checks: lint, format, types, tests, doctests
	$(BIN)/python -m pytest -n 2 -m "not slow" --timeout 600

test-slow: setup ## The tests too slow for CI
	$(BIN)/python -m pytest -n 2 -m slow

test-machines: setup ## The numerical tests as other processors, with two threads, shuffled, with other seeds
	$(BIN)/python tools/test_machines.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

format: setup ## Put the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis isogon-demo
