# Every target sets itself up in a virtual environment of its own; nothing but Python, make and gcc is needed.
PYTHON ?= python3
VENV ?= .venv
# Where pip finds only a CUDA build of torch and you have no GPU:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP = $(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PYTEST = $(VENV)/bin/python -m pytest

.PHONY: help quickstart test scorecard lint parity kernels gpu wheel clean

help:
	@echo "make quickstart   fine-tune a ViT on the built-in data, evaluate, write the report"
	@echo "make test         all tests, in a virtual environment of their own"
	@echo "make scorecard    the reliability scorecard with its long counts"
	@echo "make lint         ruff and mypy"
	@echo "make parity       agreement with timm, transformers and torchvision themselves (installs them)"
	@echo "make kernels      the GPU kernels on a CPU, by Triton's interpreter (installs Triton)"
	@echo "make gpu          the tests that need a CUDA device"
	@echo "make wheel        build wheel and sdist, install them elsewhere, try them"

$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[fast,plots]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -e '.[fast,data,plots,serve,export,dev]'
	@touch $@

quickstart: $(VENV)/.run
	$(VENV)/bin/python examples/quickstart.py

test: $(VENV)/.dev
	$(PYTEST) -n 2 --dist worksteal -m "not gpu and not scorecard and not parity"

scorecard: $(VENV)/.dev
	$(PYTEST) -m "not gpu and not parity" --timeout 3600 --scorecard docs/scorecard.md tests/faults tests/attacks tests/data tests/train tests/ship tests/weights

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check src tests examples
	$(VENV)/bin/ruff format --check src tests examples
	$(VENV)/bin/mypy

parity: $(VENV)/.dev
	$(PIP) 'timm>=1.0.20' 'transformers>=5,<6' 'torchvision>=0.25'
	$(PYTEST) -m parity tests/parity

kernels: $(VENV)/.dev
	$(PIP) -e '.[kernels-test]'
	$(PYTEST) -m "not gpu" tests/kernels

gpu: $(VENV)/.dev
	$(PYTEST) -m gpu -rs

wheel: $(VENV)/.dev
	$(VENV)/bin/python -m build -q
	$(PYTEST) tests/e2e/test_wheel.py

clean:
	rm -rf $(VENV) dist build
