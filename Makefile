# One word each. PYTHON is the interpreter of an environment with the extras test and docs.
PYTHON ?= python

.PHONY: all format lint types test test-all fuzz bench docs docs-reference

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
	EVERY_CASE=1 $(PYTHON) -m pytest -m "slow or not slow"

# CASES=100000 takes hours; a case that breaks a law is kept in fuzz-kept/ and repeated with --first SEED --cases 1.
CASES ?= 2000
fuzz:
	$(PYTHON) tests/fuzz/campaign.py --cases $(CASES) --keep fuzz-kept

bench:
	$(PYTHON) benchmarks/run.py

docs: docs-reference
	$(PYTHON) -m mkdocs build --strict

docs-reference:
	$(PYTHON) docs/generate.py
