# Two commands do all the set-up: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs clean

demo: .venv/.run
	$(BIN)/evclplus demo

test: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto -m "not slow"

# The site: code cells are run, warnings and dead links are errors.
docs: .venv/.docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/site
	$(BIN)/python docs/links.py build/site

.venv/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/.test: .venv/.run
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

.venv/.docs: .venv/.run
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv runs build docs/generated
