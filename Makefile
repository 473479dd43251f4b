# Everything goes through one virtual environment, made by the first target that needs it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
JOBS ?= 2

.PHONY: help setup browser train test statistical check names format lint types contracts docs bench resilience clean

help:
	@echo "make setup      the virtual environment in .venv, with everything; as root on Debian also chromium, for tests"
	@echo "make train      set up if needed, fetch MNIST, train to ε = 3, print the claim and write a report"
	@echo "make resilience kill -9 at 20 random moments of an MNIST run; the result must be that of an undisturbed one"
	@echo "make test       set up if needed, then all tests but the slow ones"
	@echo "make statistical  the slow tests: on real data, or of many runs"
	@echo "make bench      time, memory and tightness beside other libraries; tens of minutes, results in bench/results"
	@echo "make check      format, lint, types, contracts, code blocks of the docs"
	@echo "make docs       run the code blocks of the pages and build the site, strictly, into dist/site"
	@echo "make names      write the stubs of public names again, after a noun was added or renamed"

setup: .venv/.ok browser

# The tests of pages want a browser: Debian's, when we may install it. Without one they are skipped, and say so.
browser:
	@.ci/browser

.venv/.ok: pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e lab
	@touch $@

train: .venv/.ok
	$(BIN)/sordino train mnist --epsilon 3

# One thread per process: two processes of two threads on two cores wait for one another at every product.
test: .venv/.ok browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m "not slow"

statistical: .venv/.ok
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m slow -o timeout=0

check: format lint types contracts docs

names: .venv/.ok
	$(BIN)/python -m tools.public_names
	$(BIN)/python -m tools.reference_pages

format: .venv/.ok
	$(BIN)/ruff format --check .

lint: .venv/.ok
	$(BIN)/ruff check .

types: .venv/.ok
	$(BIN)/mypy

contracts: .venv/.ok
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) tests/contracts

docs: .venv/.ok
	$(BIN)/pytest tests/test_docs.py
	$(BIN)/mkdocs build --quiet

.venv/.bench: .venv/.ok
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]' -e lab
	@touch $@

bench: .venv/.bench
	$(BIN)/python -m bench.step
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.kernels
	$(BIN)/python -m bench.noise
	$(BIN)/python -m bench.penalty
	$(BIN)/python -m bench.sorted
	$(BIN)/python bench/accounting.py

resilience: .venv/.ok
	$(BIN)/python -m bench.resilience --recipe mnist --kills 20

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
