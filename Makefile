# `make demo` and `make test` do everything on a machine that has Python 3.11+ with venv, and make.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: demo test bench pages clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[timm,hf,dev]'
	touch $@

demo: .venv/installed  ## a teacher of the digits 0-7 helps a student of 4-9
	$(BIN)/refilled demo

test: .venv/installed  ## style, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS)

bench: .venv/installed  ## speed and memory against what one would run instead
	$(BIN)/python benchmarks/training.py $(BENCH)
	$(BIN)/python benchmarks/comparison.py
	$(BIN)/python benchmarks/folder.py

pages: .venv/installed  ## results/TABLE.md anew from the ledger, each by the command at its foot
	grep -ho '^Made by `refilled bench [^`]*' results/*.md | cut -d '`' -f 2 | while read -r made; do $(BIN)/$$made; done

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
