# Everything happens in .venv, made on first use; nothing is installed twice.
# pip's own settings (PIP_*, proxies) are honoured. Once installed, no network is needed.
# Bytecode is made as modules are imported: of all of them it would take half a minute.
PYTHON ?= python3
ARGS ?=
# Processes that run tests side by side, one more than two cores, for some tests wait; each takes up to 3 GB.
JOBS ?= 3
BIN := .venv/bin
# tests/workers.py: the processes are forked from one that has loaded the libraries.
PYTEST = $(BIN)/python -m pytest -p tests.workers -n $(JOBS) --dist loadfile --no-loadscope-reorder
# The page's own scripts and style; .oxlintrc.json and .oxfmtrc.json leave the library beside them out.
SCRIPTS := taftcache/view/assets
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-full check format docs notebooks clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: .venv/installed ## the main job, on data and weights that come along
	PYTHONDONTWRITEBYTECODE= $(BIN)/taftcache demo

# Bytecode is kept, whatever the shell says: every process that a test starts would compile the package anew.
test: .venv/installed-dev ## the tests, short forms only; ARGS="-k name" chooses. TAFTCACHE_DATA names real data
	PYTHONDONTWRITEBYTECODE= $(PYTEST) -m "not full" $(ARGS)

test-full: .venv/installed-dev ## the tests, the long forms too
	$(PYTEST) -o faulthandler_timeout=7200 $(ARGS)

check: .venv/installed-dev ## lint, formatting, types, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/oxlint --quiet $(SCRIPTS)
	$(BIN)/oxfmt --check $(SCRIPTS)
	$(BIN)/mypy
	$(BIN)/python tools/make_docs.py --check
	$(BIN)/python tools/make_teaching.py --check
	$(BIN)/python tools/make_results.py --check

format: .venv/installed-dev ## put the formatting right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/oxfmt $(SCRIPTS)

docs: .venv/installed-docs ## write the generated pages anew, and build the site of all pages in build/site
	$(BIN)/python tools/make_docs.py
	$(BIN)/python tools/make_docs.py --output
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --config-file tools/site/mkdocs.yml

notebooks: .venv/installed-docs ## run the notebooks anew, and keep what they show
	$(BIN)/python tools/make_notebooks.py

clean: ## remove .venv and caches; stores are kept
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "taftcache needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1 || true)"; \
	  echo "Name another one:  make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: .venv/made pyproject.toml
	$(PIP) install --no-compile --editable .
	@touch $@

.venv/installed-dev: .venv/made pyproject.toml
	$(PIP) install --no-compile --editable '.[dev]'
	@touch .venv/installed $@

.venv/installed-docs: .venv/made pyproject.toml
	$(PIP) install --no-compile --editable '.[dev,docs]'
	@touch .venv/installed .venv/installed-dev $@
