# Two commands, from a fresh clone, with Python >= 3.11 and pip:
#   make serve    install, obtain the default model, serve it on 127.0.0.1:8000
#   make test     install with the test extras, check style and types, run the test suite

PYTHON ?= python3
MODEL ?=
ARGS ?=
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# An editable install has to be repeated when a file comes or goes, not when one changes, and when native
# code changes: the stamps carry a checksum of the file names, of pyproject.toml and of what is compiled.
# Strict mode, since type checkers can read it.
FOLDERS := frontend_lang runtime radix kernels bench
KEY := $(shell (find $(FOLDERS) -name '*.py' | LC_ALL=C sort; \
	cat pyproject.toml setup.py kernels/cpu/src/*) | cksum | cut -d' ' -f1)
SERVE_STAMP := $(VENV)/ramet-serve-$(KEY)
TEST_STAMP := $(VENV)/ramet-test-$(KEY)
EDITABLE := --config-settings editable_mode=strict --editable

.PHONY: serve test lint types tests format clean

serve: $(SERVE_STAMP)
	$(BIN)/ramet serve $(MODEL) $(ARGS)

test: lint types tests

tests: $(TEST_STAMP)
	$(BIN)/pytest $(ARGS)

lint: $(TEST_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(TEST_STAMP)
	$(BIN)/mypy

format: $(TEST_STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ramet needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(SERVE_STAMP): | $(BIN)/python
	$(PIP) install $(EDITABLE) .
	@rm -f $(VENV)/ramet-*
	@touch $@

$(TEST_STAMP): | $(BIN)/python
	$(PIP) install $(EDITABLE) '.[test]'
	@rm -f $(VENV)/ramet-*
	@touch $(SERVE_STAMP) $@
