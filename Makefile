# Everything runs in .venv, made from requirements.lock when first needed.
SHELL := /bin/bash
OUTPUT_DIR ?= outputs
PORT ?= 6006
PYTHON3 := $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo figures report tensorboard test test-slow test-slurm bench lint format lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv and install the pinned packages (the other targets do it as well)

$(READY): requirements.lock
	@"$(PYTHON3)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "error: Python 3.11 is needed, found: $(PYTHON3)"; exit 1; }
	@echo "Installing the pinned packages into .venv (once, several GB: PyTorch)"
	$(PYTHON3) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

demo: $(READY) ## the main job in minutes: three optimizers, nine batch sizes, figures and the answer
	@$(BIN)/python train.py -m experiment=digits 'output_dir="$(OUTPUT_DIR)"'

figures: $(READY) ## the answer, figures and tables of what is under OUTPUT_DIR (default outputs)
	@$(BIN)/python -m cbs_lightning.reporting.figures "$(OUTPUT_DIR)"

report: $(READY) ## one HTML page per study to browse and to send, under OUTPUT_DIR
	@$(BIN)/python -m cbs_lightning.reporting.report "$(OUTPUT_DIR)"

tensorboard: $(READY) ## browse the runs under OUTPUT_DIR at http://localhost:PORT (default 6006)
	@test -d "$(OUTPUT_DIR)" || { echo "error: OUTPUT_DIR=$(OUTPUT_DIR): no such directory"; exit 1; }
	@$(BIN)/python -c 'import socket; socket.create_server(("localhost", $(PORT)))' 2>/dev/null || \
	  { echo "error: PORT=$(PORT): taken, or not a port; another one, such as PORT=6007"; exit 1; }
	@echo "Steps and SFO against batch size: http://localhost:$(PORT)/#scalars&regexInput=_sweep&_smoothingWeight=0"
	@echo "The same, in groups:              http://localhost:$(PORT)/#custom_scalars&regexInput=_sweep&_smoothingWeight=0"
	@echo "Figures:                          http://localhost:$(PORT)/#images&regexInput=_sweep"
	@echo "Every run and what it found:      http://localhost:$(PORT)/#hparams"
	@$(BIN)/tensorboard --logdir "$(OUTPUT_DIR)" --host localhost --port "$(PORT)" \
	  --window_title "$(OUTPUT_DIR)" --reload_multifile true

test: $(READY) lint ## lint, types and all tests but the slow ones and those of a cluster
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not slurm"

test-slow: $(READY) ## the slow tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

test-slurm: $(READY) ## the tests on a SLURM that they start (needs root, and Debian's slurm-wlm and munge)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slurm and not slow" -rs

bench: $(READY) ## speed and memory beside a hand-written loop's: a table and OUTPUT_DIR/bench.json (PARTS=..., see docs/speed.md)
	@$(BIN)/python -m benchmarks $(if $(EVERY),--every) $(if $(RUNS),--runs "$(RUNS)") --output "$(OUTPUT_DIR)/bench.json" $(PARTS)

lint: $(READY) ## ruff, mypy, and the order of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## pin anew, within the ranges of pyproject.toml (needs uv)
	uv pip compile --universal --generate-hashes --python-version 3.11 --extra dev \
	  --no-emit-index-url --custom-compile-command "make lock" pyproject.toml -o requirements.lock

clean: ## remove .venv and caches; runs stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
