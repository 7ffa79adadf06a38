# Everything a newcomer needs: `make demo`, `make test`. The virtual environment is built once and rebuilt when it is stale.
PYTHON ?= python3
DEVICE ?= cuda
SEED   ?= $(shell date +%Y%m%d)
DATA   ?= ../shared/data
NUMERIC ?= -m "numeric and not nightly" --one-of 8
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Python writes the bytecode of what it imports: where that is forbidden, each process of the tests compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo real real-quick test test-files test-ray nightly numeric gpu lint format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

venv: $(STAMP)  ## build .venv with the exact versions of constraints.txt

# torch goes first and alone: a resolver that meets it among others may prefer a CUDA build of several gigabytes.
# Modules are compiled when they are first imported: most never are.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "closelook needs Python 3.11 or newer; set PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

demo: venv  ## run the whole job on the embedded default and say where the report is
	$(BIN)/closelook run --config demo

real: venv  ## fetch pretrained models, fine-tune two classifiers and run the benchmark on them; DATA=DIR holds published data
	$(BIN)/python -m tools.real --data $(DATA) $(ARGS)

real-quick: venv  ## the same in minutes, with few samples
	$(BIN)/python -m tools.real --data $(DATA) --quick $(ARGS)

test: venv  ## run the tests: file by file on every core, then those that start a Ray, which takes every core by itself
	@status=0; for part in test-files test-ray; do $(MAKE) --no-print-directory $$part || status=$$?; done; exit $$status

test-files: venv
	$(BIN)/python -m pytest -m "not ray and not nightly" -n auto --dist loadfile --no-loadscope-reorder

test-ray: venv
	$(BIN)/python -m pytest -m "ray and not nightly" tests/jobs

nightly: venv  ## what takes too long for every change: tests marked so, every number of the demo's report computed again, real models where DATA is there; runs under faults have another seed each day
	status=0; \
	SEED=$(SEED) $(BIN)/python -m pytest -m nightly || status=$$?; \
	$(MAKE) --no-print-directory --keep-going NUMERIC='-m numeric' numeric-default numeric-avx2 || status=$$?; \
	report=$$(mktemp -d); \
	{ $(BIN)/closelook run --config demo --root $$report && $(BIN)/python -m tests.recompute $$report; } || status=$$?; \
	if [ -d $(DATA) ]; then $(MAKE) --no-print-directory real-quick || status=$$?; fi; \
	exit $$status

numeric: numeric-default  ## run one of every eight tests that compare numbers as on CPUs without AVX; `nightly`: all, and as without AVX-512

numeric-%: venv
	ATEN_CPU_CAPABILITY=$* $(BIN)/python -m pytest $(NUMERIC) -n auto --dist loadfile tests/lrp_core tests/alti tests/evaluation

gpu:  ## prove on a GPU, with PYTHON's own torch and nothing installed, what the tests prove on the CPU; DEVICE=cpu rehearses
	PYTHONPATH=src $(PYTHON) -m benchmarks.gpu --device $(DEVICE)

lint: venv  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment, caches and runs
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
