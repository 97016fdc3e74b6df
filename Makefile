# Two commands do all the set-up: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs rivals clean

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

# Other libraries on the same work, in an environment of their own; some ten minutes on a quiet machine.
rivals: .venv-rivals/.ready
	OMP_NUM_THREADS=1 .venv-rivals/bin/python -m tools.bench --rivals --rounds 12 \
	    --out results/bench/comparison.json --page docs/comparison.md --overwrite

.venv-rivals/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-rivals
	.venv-rivals/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[rivals]'
	touch $@

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
	rm -rf .venv .venv-rivals runs build docs/generated
