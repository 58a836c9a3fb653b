# Everything runs in .venv, which any target creates first. CPU threads: one per process, so results repeat.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
EXTRAS := all,bench,dev
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo test lint docs unit soak wheel bench lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

setup: $(STAMP) ## create .venv with everything the demo and the tests need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fcal needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: setup ## find the red disc: the recommended row and what it is compared with, in a table, a page and three sentences
	$(BIN)/fcal benchmark bokeh --preset quick --out runs/bokeh

test: lint docs unit wheel ## every check and test; what CI runs

lint: setup ## style, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup ## pages and API reference as HTML in docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html

unit: setup ## doctests and tests
	$(BIN)/python -m pytest -n 2

soak: setup ## kills, full disks, flipped bits and interrupts at many moments; half an hour
	$(BIN)/python -m pytest -m soak tests
	$(BIN)/python -m pytest tests/test_files.py tests/test_executor.py tests/sweeps tests/training/test_resume.py tests/recalibration/test_saving.py tests/tables/test_memory.py tests/cli/test_hostile_input.py

wheel: setup ## build the wheel, install it into an empty environment, import it there
	rm -rf dist .venv-wheel
	$(BIN)/python -m build --wheel --outdir dist
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd dist && ../.venv-wheel/bin/python -I ../tests/smoke.py
	rm -rf .venv-wheel

bench: setup ## speed as ratios in one run; writes runs/bench/*.json
	$(BIN)/python bench/core.py --out runs/bench/core.json
	$(BIN)/python bench/families.py --out runs/bench/families.json
	$(BIN)/python bench/evaluation.py --out runs/bench/evaluation.json
	$(BIN)/python bench/recalibration.py --out runs/bench/recalibration.json
	$(BIN)/python bench/repaired_laws.py --out runs/bench/repaired_laws.json
	$(BIN)/python bench/training.py --out runs/bench/training.json
	$(BIN)/python bench/data.py --out runs/bench/data.json
	$(BIN)/python bench/stacked.py --out runs/bench/stacked.json
	$(BIN)/python bench/depth_speed.py --out runs/bench/depth.json
	$(BIN)/python bench/detection_speed.py --out runs/bench/detection.json
	$(BIN)/python bench/detector_speed.py --out runs/bench/detector.json

# torch and torchvision are only good as a pair: to move them, edit their two lines first.
lock: ## rewrite constraints.txt with what resolves today, torch and torchvision as they are
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	grep -E '^torch(vision)?==' constraints.txt > .venv-lock/pins.txt
	.venv-lock/bin/python -m pip install --quiet --constraint .venv-lock/pins.txt '.[$(EXTRAS)]'
	.venv-lock/bin/python -m pip freeze --exclude fcal --exclude pip > constraints.new
	mv constraints.new constraints.txt
	rm -rf .venv-lock

clean: ## remove what the targets above made
	rm -rf .venv .venv-wheel .venv-lock dist runs docs/_build docs/api .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
