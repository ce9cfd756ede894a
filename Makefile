# Every target sets up .venv when it is missing or out of date, and only then.
.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests compute with one thread each. A file's tests stay together, because they share what they set up.
WORKERS ?= 2
PARALLEL := --numprocesses $(WORKERS) --dist loadfile
# Tests and the packaged model never need a network.
export HF_HUB_OFFLINE ?= 1

.PHONY: help setup detect check docs test test-all test-fast test-lowest test-newest dist test-dist format parity clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with every extra, in the tested versions

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev]'
	touch $(STAMP)

detect: $(STAMP) ## find the sticky tokens of the packaged all-MiniLM-L6-v2, whole vocabulary (about 3 minutes)
	$(BIN)/stickytoken detect all-MiniLM-L6-v2

check: $(STAMP) docs ## run ruff and mypy, and build the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP) ## build the documentation in build/docs; a dead link is an error
	$(BIN)/python website/build.py

test: $(STAMP) ## run the tests (about 11 minutes of processor time)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not nightly'

test-all: $(STAMP) ## run all tests, those that a workflow runs at night too
	$(BIN)/python -m pytest $(PARALLEL)

test-fast: $(STAMP) ## run the tests that are quick and need no browser (about 3 minutes of processor time)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not browser and not nightly'

test-lowest: $(VENV)-lowest/.installed ## run the fast tests with the lowest supported versions
	$(VENV)-lowest/bin/python -m pytest $(PARALLEL) -m 'not slow and not browser and not nightly'

test-newest: $(VENV)-newest/.installed ## run the fast tests with the newest versions that can be installed
	$(VENV)-newest/bin/python -m pytest $(PARALLEL) -m 'not slow and not browser and not nightly'

$(VENV)-lowest/.installed: PINS := --constraint constraints-lowest.txt
$(VENV)-newest/.installed: PINS := --upgrade
$(VENV)-lowest/.installed $(VENV)-newest/.installed: pyproject.toml constraints-lowest.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PINS) --editable '.[all,dev]'
	touch $@

dist: $(VENV)-dist/.installed ## build the sdist and the wheel of the last commit in dist/
	rm -rf dist
	.ci/build $(VENV)-dist/bin/python dist

test-dist: $(STAMP) dist ## install the wheel in clean environments, alone and with each extra (takes long)
	STICKYTOKEN_WHEEL=$$(ls dist/*.whl) $(BIN)/python -m pytest tests/installed

$(VENV)-dist/.installed: constraints.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build hatchling twine
	touch $@

format: $(STAMP) ## format and fix with ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

parity: $(STAMP) ## compare with the published numbers (needs the published tables; about 45 minutes on 2 cores)
	$(BIN)/python benchmarks/parity.py minilm

clean: ## remove the environments and caches
	rm -rf build dist $(VENV) $(VENV)-lowest $(VENV)-newest $(VENV)-dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
