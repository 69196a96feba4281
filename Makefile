# Everything from a fresh checkout: `make demo`, `make test`. Needs Python 3.11 or newer and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two threads: what the figures in the documentation were measured with, and enough for small maps.
export OMP_NUM_THREADS ?= 2
# Threads that wait spin briefly, then sleep: as fast as spinning on a quiet machine, and not many times slower beside
# another busy program.
export GOMP_SPINCOUNT ?= 1000
OUT ?= demo

.PHONY: demo test lint bench clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/widefield compare --out $(OUT)

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/pyright

bench: $(READY)
	$(BIN)/python -m benchmarks.run

clean:
	rm -rf $(VENV) demo bench
