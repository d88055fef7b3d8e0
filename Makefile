# Two commands for a newcomer: `make run` and `make test`. Every target makes what it needs and nothing twice.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTHON ?= $(shell scripts/find-python.sh)
# One more than there are processors: many tests wait for other processes.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
SECONDS ?= 60
CUTS ?= 500
STATES ?=
ONLY ?=
ARGS ?=

# The native codecs, built beside their sources; where they cannot be built, the plain ones run.
KERNEL := build/kernel.stamp

# Spark and a browser are large: they are asked for only while there are parts and tests that use them.
SPARK := $(if $(wildcard src/topics/spark/__init__.py),yes)
BROWSER := $(if $(shell grep -rls 'mark\.browser' tests --include='test_*.py'),yes)
SYSTEM := $(if $(SPARK),java) $(if $(BROWSER),chromium) prometheus
TEST_ENV := $(STAMPS)/dev $(STAMPS)/docs $(if $(SPARK),$(STAMPS)/spark) $(KERNEL)

# Tests without processes, sockets, crash points and long simulations: what a change of a line is likely to break first.
QUICK := tests/config tests/core tests/formats tests/model tests/net tests/wire tests/repository tests/testing \
    tests/storage/segments tests/engine/delivery tests/test_clock.py tests/test_errors.py tests/test_limits.py
FAST := 'not slow and not spark and not browser'
TESTS ?= $(QUICK)

.PHONY: help setup run test quick coverage check bench sim powercut planted console docs clean

help:
	@echo 'make run     start what there is'
	@echo 'make test    checks and all tests (ARGS="-k name" narrows the tests)'
	@echo 'make quick   checks and the fast tests, under two minutes: for every day'
	@echo 'make setup   environment in $(VENV), so that $(BIN)/topics works'
	@echo 'make check   lint, types, layers'
	@echo 'make coverage branch coverage of the source by the fast tests (TESTS=tests: by all of them)'
	@echo 'make bench   all benchmarks in sequence (ONLY=name picks some)'
	@echo 'make sim     long simulation runs (SECONDS=60), and crash states for as long (STATES=2000000: until so many)'
	@echo 'make powercut shut file systems down under a server, again and again (root; CUTS=500)'
	@echo 'make planted plant known bugs one by one and show which test notices (ARGS=name picks some)'
	@echo 'make console build the web console from console/ into the package (needs node; the built files are committed)'
	@echo 'make docs    build the documentation site into site/'
	@echo 'make clean   remove the environment and caches'

setup: $(KERNEL)

run: $(KERNEL) $(if $(SPARK),$(STAMPS)/spark)
	@scripts/system-packages.sh $(if $(SPARK),java)
	@scripts/run.sh

test: check
	@scripts/system-packages.sh $(SYSTEM)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

quick: check
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m $(FAST) $(QUICK) $(ARGS)

coverage: $(TEST_ENV)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m $(FAST) --cov --cov-report=term:skip-covered $(TESTS) $(ARGS)

check: $(TEST_ENV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(TEST_ENV)
	$(BIN)/python bench/run.py $(ONLY)

sim: $(TEST_ENV)
	@scripts/sim.sh $(SECONDS) "$(STATES)" $(ARGS)

powercut: $(TEST_ENV)
	$(BIN)/python -m tests.powercut.run --cuts $(CUTS) $(ARGS)

planted: $(TEST_ENV)
	$(BIN)/python scripts/planted.py $(ARGS)

console:
	cd console && npm install --no-audit --no-fund --no-package-lock && npm run check && npm run build

docs: $(STAMPS)/docs $(KERNEL)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'open site/index.html'

clean:
	rm -f src/topics/formats/codec/*.so
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv: scripts/make-venv.sh
	@scripts/make-venv.sh '$(PYTHON)' $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/package: $(STAMPS)/venv requirements-build.txt requirements.txt pyproject.toml
	$(PIP) install -r requirements-build.txt -r requirements.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(KERNEL): $(STAMPS)/package setup.py $(wildcard src/topics/formats/codec/*.pyx src/topics/formats/codec/*.pxd)
	@scripts/system-packages.sh headers
	@scripts/build-kernel.sh $@

$(STAMPS)/dev: $(STAMPS)/package requirements-dev.txt
	$(PIP) install -r requirements.txt -r requirements-dev.txt
	@touch $@

$(STAMPS)/docs: $(STAMPS)/package requirements-docs.txt
	$(PIP) install -r requirements.txt -r requirements-docs.txt
	@touch $@

$(STAMPS)/spark: $(STAMPS)/package requirements-spark.txt
	$(PIP) install -r requirements.txt -r requirements-spark.txt
	@touch $@
