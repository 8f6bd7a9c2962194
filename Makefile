# make demo    install, then train CartPole without and with a lead, side by side
# make test    install, then run the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow check format bench bench-peers study clean

demo: $(INSTALLED)
	$(BIN)/headway demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_imports.py

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python bench/overlap.py
	$(BIN)/python bench/colorlines_overlap.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/transport.py

# Return against lead, by correction: pictures and a table. An interrupted study goes on where it was.
study: $(INSTALLED)
	$(BIN)/python bench/staleness.py

# Environments for the peers that benchmarks compare with: .bench-venv*. A peer that cannot be installed is named.
bench-peers:
	$(PYTHON) bench/peers/install.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,games,ray,llm,tensorboard,wandb]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
