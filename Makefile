# One word each. PYTHON is the interpreter of an environment with the extras test and docs.
PYTHON ?= python

.PHONY: all format lint types test test-all bench docs docs-reference

all: lint types test docs

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	.ci/types $(PYTHON)

test:
	$(PYTHON) -m pytest

test-all:
	$(PYTHON) -m pytest -m "slow or not slow"

bench:
	$(PYTHON) benchmarks/run.py

docs: docs-reference
	$(PYTHON) -m mkdocs build --strict

docs-reference:
	$(PYTHON) docs/generate.py
