# Everything runs in .venv, made from requirements.lock when first needed.
SHELL := /bin/bash
OUTPUT_DIR ?= outputs
PORT ?= 6006
PYTHON3 := $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.installed

# What a user sets goes to programs through the environment, as it was typed: text that is put into
# a recipe would be run, by make or by the shell.
override OUTPUT_DIR := $(value OUTPUT_DIR)
override PORT := $(value PORT)
override EVERY := $(value EVERY)
override RUNS := $(value RUNS)
override PARTS := $(value PARTS)
override LOSS := $(value LOSS)
override PUBLISHED := $(value PUBLISHED)
override RULE := $(value RULE)
override WINDOW := $(value WINDOW)
override WITHIN := $(value WITHIN)
override STUDY := $(value STUDY)
override VARIANTS := $(value VARIANTS)
export OUTPUT_DIR PORT EVERY RUNS PARTS LOSS RULE WINDOW WITHIN STUDY VARIANTS PUBLISHED PYTHON3
# Nothing in it is a user's text.
override QUESTION = $${LOSS:+"--loss=$$LOSS"} $${RULE:+"--rule=$$RULE"} \
  $${WINDOW:+"--window=$$WINDOW"} $${WITHIN:+"--within=$$WITHIN"} \
  $${STUDY:+"--study=$$STUDY"} $${VARIANTS:+"--variants=$$VARIANTS"}

.DEFAULT_GOAL := help
.PHONY: help setup demo figures paper docs report prediction tensorboard test test-slow test-slurm bench lint format lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv and install the pinned packages (the other targets do it as well)

# First what installs the rest, since one package has to be built here.
$(READY): requirements.lock requirements-build.lock
	@"$$PYTHON3" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "error: Python 3.11 is needed, found: $$PYTHON3"; exit 1; }
	@if [ -L .venv ]; then echo "error: .venv is a link, and installing would empty what it points to; remove it"; exit 1; fi
	@echo "Installing the pinned packages into .venv (once, several GB: PyTorch)"
	"$$PYTHON3" -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  --only-binary :all: -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  --no-build-isolation -r requirements.lock
	@touch $@

demo: $(READY) ## the main job in minutes: three optimizers, nine batch sizes, figures and the answer
	@CBS_OUTPUT_DIR="$$OUTPUT_DIR" $(BIN)/python train.py -m experiment=digits

figures: $(READY) ## the answer, figures and tables of what is under OUTPUT_DIR (LOSS, RULE, WINDOW, WITHIN, STUDY, VARIANTS=...)
	@$(BIN)/python -m cbs_lightning.reporting.figures $(QUESTION) -- "$$OUTPUT_DIR"

paper: $(READY) ## the paper's figures and tables beside the published runs: docs/paper.md, docs/paper/
	@$(BIN)/python -m cbs_lightning.reporting.paper

docs: $(READY) .venv-docs/.installed ## the documentation as a site, in site/
	@$(BIN)/python -m cbs_lightning.reporting.configuration_page
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo "wrote site/index.html; with search: python3 -m http.server --bind localhost --directory site"

# An environment of its own: nothing but make docs needs these packages.
.venv-docs/.installed: requirements-docs.lock
	"$$PYTHON3" -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  --only-binary :all: -r requirements-docs.lock
	@touch $@

report: $(READY) ## one HTML page per study to browse and to send, under OUTPUT_DIR (LOSS, ... as for figures)
	@$(BIN)/python -m cbs_lightning.reporting.report $(QUESTION) -- "$$OUTPUT_DIR"

prediction: $(READY) ## b* predicted from single runs beside b* measured, where there are probes (LOSS=0.5,0.2 STUDY=... PUBLISHED=docs/paper)
	@$(BIN)/python -m cbs_lightning.reporting.prediction $${LOSS:+"--loss=$$LOSS"} \
	  $${STUDY:+"--study=$$STUDY"} $${PUBLISHED:+"--published=$$PUBLISHED"} -- "$$OUTPUT_DIR"

tensorboard: $(READY) ## browse the runs under OUTPUT_DIR at http://localhost:PORT (default 6006)
	@$(BIN)/python -m cbs_lightning.reporting.tensorboard_server "--port=$$PORT" -- "$$OUTPUT_DIR"

test: $(READY) lint ## lint, types and all tests but the slow ones and those of a cluster
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not slurm"

test-slow: $(READY) ## the slow tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

test-slurm: $(READY) ## the tests on a SLURM that they start (needs root, and Debian's slurm-wlm and munge)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slurm and not slow" -rs

bench: $(READY) ## speed and memory beside a hand-written loop's: a table and OUTPUT_DIR/bench.json (PARTS=..., see docs/speed.md)
	@set -f; $(BIN)/python -m benchmarks $${EVERY:+--every} $${RUNS:+"--runs=$$RUNS"} \
	  "--output=$$OUTPUT_DIR/bench.json" -- $$PARTS

lint: $(READY) ## ruff, mypy, and the order of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## pin anew, within the ranges of pyproject.toml (needs uv)
	uv pip compile --universal --generate-hashes --python-version 3.11 --extra dev --extra slurm \
	  --no-emit-index-url --custom-compile-command "make lock" pyproject.toml -o requirements.lock
	uv pip compile --universal --generate-hashes --python-version 3.11 --group install \
	  --constraints requirements.lock --no-emit-index-url --custom-compile-command "make lock" \
	  -o requirements-build.lock
	uv pip compile --universal --generate-hashes --python-version 3.11 --group docs \
	  --constraints requirements.lock --no-emit-index-url --custom-compile-command "make lock" \
	  -o requirements-docs.lock

clean: ## remove .venv and caches; runs stay
	rm -rf .venv .venv-docs site .pytest_cache .mypy_cache .ruff_cache
