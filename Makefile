# Every target sets up what it needs in .venv when that is missing or out of date, and only then.
.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Two stamps in the same environment: what `make detect` needs, and everything.
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
# Tests compute with one thread each. A file's tests stay together, because they share what they set up.
WORKERS ?= 2
PARALLEL := --numprocesses $(WORKERS) --dist loadfile
# Tests and the packaged model never need a network.
export HF_HUB_OFFLINE ?= 1
# uv installs in seconds what takes pip minutes. It looks for wheels where pip does: a machine may offer a build of
# torch for CPUs there, without which uv fetches gigabytes of CUDA. Elsewhere: UV_TORCH_BACKEND=cpu make setup
comma := ,
space := $(subst ,, )
export UV_FIND_LINKS ?= $(subst $(space),$(comma),$(strip $(PIP_FIND_LINKS)))
UV_INSTALL = $(@D)/bin/uv pip install --quiet --python $(@D)/bin/python

.PHONY: help setup setup-dev detect check docs test test-all test-fast test-lowest test-newest dist test-dist format parity clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with what `make detect` needs, in the tested versions

setup-dev: $(DEV_STAMP) ## add every extra and the tools of development to .venv

# An environment with uv, of whatever name.
%/bin/uv:
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/uv
	$(UV_INSTALL) --constraints constraints.txt --editable '.[offline,report]'
	touch $@

# Tests start many processes. Compiled once, the libraries are not compiled again in each of them where
# PYTHONDONTWRITEBYTECODE is set.
$(DEV_STAMP): $(STAMP)
	$(UV_INSTALL) --compile-bytecode --constraints constraints.txt --editable '.[all,dev]'
	touch $@

detect: $(STAMP) ## find the sticky tokens of the packaged all-MiniLM-L6-v2, whole vocabulary (about 5 minutes)
	$(BIN)/stickytoken detect all-MiniLM-L6-v2

check: $(DEV_STAMP) docs ## run ruff and mypy, and build the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DEV_STAMP) ## build the documentation in build/docs; a dead link is an error
	$(BIN)/python website/build.py

test: $(DEV_STAMP) ## run the tests (about 20 minutes of processor time)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not nightly'

test-all: $(DEV_STAMP) ## run all tests, those that a workflow runs at night too
	$(BIN)/python -m pytest $(PARALLEL)

test-fast: $(DEV_STAMP) ## run the tests that are quick and need no browser (about 3 minutes of processor time)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not browser and not nightly'

test-lowest: $(VENV)-lowest/.installed ## run the fast tests with the lowest supported versions
	$(VENV)-lowest/bin/python -m pytest $(PARALLEL) -m 'not slow and not browser and not nightly'

test-newest: $(VENV)-newest/.installed ## run the fast tests with the newest versions that can be installed
	$(VENV)-newest/bin/python -m pytest $(PARALLEL) -m 'not slow and not browser and not nightly'

$(VENV)-lowest/.installed: PINS := --constraints constraints-lowest.txt
$(VENV)-newest/.installed: PINS := --upgrade
$(VENV)-lowest/.installed: | $(VENV)-lowest/bin/uv
$(VENV)-newest/.installed: | $(VENV)-newest/bin/uv
$(VENV)-lowest/.installed $(VENV)-newest/.installed: pyproject.toml constraints-lowest.txt
	$(UV_INSTALL) $(PINS) --editable '.[all,dev]'
	touch $@

dist: $(VENV)-dist/.installed ## build the sdist and the wheel of the last commit in dist/
	rm -rf dist
	.ci/build $(VENV)-dist/bin/python dist

test-dist: $(DEV_STAMP) dist ## install the wheel in clean environments, alone and with each extra (takes long)
	STICKYTOKEN_WHEEL=$$(ls dist/*.whl) $(BIN)/python -m pytest tests/installed

$(VENV)-dist/.installed: constraints.txt | $(VENV)-dist/bin/uv
	$(UV_INSTALL) --constraints constraints.txt build hatchling twine
	touch $@

format: $(DEV_STAMP) ## format and fix with ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

parity: $(DEV_STAMP) ## compare with the published numbers (needs the published tables; about 45 minutes on 2 cores)
	$(BIN)/python benchmarks/parity.py minilm

clean: ## remove the environments and caches
	rm -rf build dist $(VENV) $(VENV)-lowest $(VENV)-newest $(VENV)-dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
