# One word each. PYTHON is the interpreter of an environment with the extras test and docs.
PYTHON ?= python

.PHONY: all format lint types test bench docs docs-reference

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

bench:
	$(PYTHON) benchmarks/run.py

docs: docs-reference
	$(PYTHON) -m mkdocs build --strict

docs-reference:
	$(PYTHON) docs/generate.py
