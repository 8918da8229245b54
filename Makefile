# Every target creates .venv and installs what it needs; there is no other set-up.
# The versions are those of constraints.txt, so the install is the same everywhere.

PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/b3_l4.py:quick
ARGS ?=
EXTRAS ?= data

BIN := $(VENV)/bin
BENCHMARKS := $(patsubst benchmarks/%.py,%,$(wildcard benchmarks/[a-z]*.py))
CODE := spheroid_jax experiments configs $(wildcard benchmarks)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test test-slow check format bench clean

help: ## this list
	@echo 'make TARGET, where TARGET is one of'
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14 | sed 's/^/  /'
	@echo 'Variables: ARGS=ARGUMENTS, CONFIG=FILE:SIZE, EXTRAS=data,cuda12, PYTHON=python3.12'

run: $(VENV)/.installed-$(EXTRAS) ## train BlockTrain beside its references: ARGS=... adds arguments
	$(BIN)/python -m experiments.run --config=$(CONFIG) $(ARGS)

test: $(VENV)/.installed-test ## run the tests, without the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(VENV)/.installed-test ## run the tests that take minutes
	$(BIN)/python -m pytest -m slow $(ARGS)

check: $(VENV)/.installed-dev ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)

format: $(VENV)/.installed-dev ## format the code and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-$(EXTRAS) ## run every benchmark
	set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name $(ARGS); done

clean: ## remove the environment and the caches; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stem names the extras of pyproject.toml, such as "data" or "data,cuda12".
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON) is not Python 3.11 or newer: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) has no venv module: install it (Debian: apt install python3-venv)" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing Python packages into $(VENV), once; it takes minutes'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
