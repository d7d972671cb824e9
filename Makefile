# Everything from a fresh machine: `make demo` and `make test` set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help

# Tests start hundreds of processes, which would compile the package again and again.
test test-slow fuzz crash: export PYTHONDONTWRITEBYTECODE :=

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "hydrasurgeon needs Python 3.11 or newer: make PYTHON=python3.11 …" >&2; exit 1; }
	@if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1; then \
		{ [ -x $(BIN)/python ] || uv venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV); } && \
		uv pip install --quiet --python $(BIN)/python -e . --group dev; \
	else \
		{ [ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV); } && \
		$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' && \
		$(BIN)/python -m pip install --quiet -e . --group dev; \
	fi
	@touch $@

setup: $(STAMP)  ## make .venv with everything in it

demo: $(STAMP)  ## what a mean, a half, a hydra and 8 bits are worth on real images (about two minutes)
	$(BIN)/hydrasurgeon demo --force

test: $(STAMP)  ## the tests, without the slow ones and those of the benchmarks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not bench" -n auto --maxprocesses 4 $(ARGS)

test-slow: $(STAMP)  ## the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n auto --maxprocesses 4 --dist loadfile $(ARGS)

COUNT ?= 20000
fuzz: $(STAMP)  ## hostile manifests, configs, decisions and predictions, COUNT=100000 of each
	OMP_NUM_THREADS=1 PYTHONPATH=.:tests:tests/support $(BIN)/python -m fuzz --count $(COUNT) $(ARGS)

crash: $(STAMP)  ## kills and failing disks at every call that writes
	OMP_NUM_THREADS=1 PYTHONPATH=.:tests:tests/support $(BIN)/python -m crash $(ARGS)

format: $(STAMP)  ## format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: $(STAMP)  ## check format, lint, that imports fall, and the language of the code
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports --no-logo
	$(BIN)/python tools/language.py --check

types: $(STAMP)  ## strict types
	$(BIN)/mypy

check: lint types test  ## what to run before a commit

PROSE := README.md docs CONTRIBUTING.md SECURITY.md
docs: $(STAMP)  ## build the site in build/site; a missing link or anchor fails, and a sentence that is hard to read
	$(BIN)/python tools/readability.py $(PROSE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(STAMP)  ## run the benchmarks; results land in benchmarks/results
	for script in circuits decision engines fused start; do echo "== $$script"; $(BIN)/python benchmarks/$$script.py || exit 1; done
	$(BIN)/python tools/render_docs.py

SHARED ?= ../shared
FRONT := --shared $(SHARED) --cache build/front
front: $(STAMP)  ## quality at every cost, for SHARED=folder with data and models (hours; it goes on where it stopped)
	for task in clinc movies topics cifar fashion; do $(BIN)/python benchmarks/front.py $$task $(FRONT) || exit 1; done
	for task in clinc movies topics cifar fashion; do $(BIN)/python benchmarks/front.py $$task $(FRONT) --time || exit 1; done
	$(BIN)/python benchmarks/entities.py $(FRONT)
	$(BIN)/python tools/render_docs.py

DATA ?= $(SHARED)/data
OTHERS := build/others
showdown: $(STAMP)  ## the demonstration: SetFit, Trainer and build on the same data, for DATA=folder (an hour or two)
	[ -f $(OTHERS)/ready ] || { $(PYTHON) -m venv $(OTHERS) && $(OTHERS)/bin/python -m pip install -q -r benchmarks/showdown/requirements.txt && touch $(OTHERS)/ready; }
	$(BIN)/python benchmarks/showdown.py --data $(DATA) --cache build/showdown --others $(OTHERS) --times
	$(BIN)/python benchmarks/few.py --data $(DATA) --cache build/few --others $(OTHERS)
	$(BIN)/python tools/render_docs.py

TABLE ?= all
SCALE ?= small
paper: $(STAMP)  ## the paper's tables: TABLE=1, SCALE=small or paper, ARGS="--place imagenet=FOLDER"
	$(BIN)/python examples/paper/tables.py $(TABLE) --scale $(SCALE) $(ARGS)

paper-gpu: $(STAMP)  ## hydras on one GPU in eight minutes, for SHARED=folder with data and models
	$(BIN)/python examples/paper/gpu.py --shared $(SHARED) $(ARGS)

bench-test: $(STAMP)  ## the tests of the benchmarks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m bench $(ARGS)

language: $(STAMP)  ## count what breaks the rules of language, by folder
	$(BIN)/python tools/language.py $(ARGS)

size: $(STAMP)  ## print how large the package is
	$(BIN)/python tools/size.py

clean:  ## remove what the targets made
	rm -rf $(VENV) hydra-demo .pytest_cache .mypy_cache .ruff_cache build dist

.PHONY: help setup demo paper paper-gpu test test-slow fuzz crash format lint types check docs bench front showdown bench-test language size clean
