# make smoke and make test each do all the set-up on a machine that has only Python (>= 3.11) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup smoke test unit integration check bench soak gpu-check lock clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "wattline needs Python 3.11 or newer; set PYTHON=python3.11, say"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

smoke: setup  ## the main job on a laptop CPU, then its table
	$(BIN)/python -m harness experiment=smoke fresh=true

test: unit integration  ## everything that needs no GPU

unit: setup  ## the fast tests, with coverage
	$(BIN)/python -m pytest -m "not integration and not gpu and not multi_gpu and not soak and not perf" \
	  --cov --cov-report=term:skip-covered

integration: setup  ## real process groups, real campaigns
	$(BIN)/python -m pytest -m "integration and not gpu and not soak and not perf"

check: setup  ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m analysis.report --check

bench: setup  ## what the harness itself costs: ratios in one run
	$(BIN)/python -m pytest tests/perf -m perf --benchmark-enable -s

soak: setup  ## the 2-rank smoke twenty times without one wrong status
	$(BIN)/python -m pytest tests/integration -m soak -s

gpu-check: setup  ## what this machine's GPUs allow, in under 5 minutes
	$(BIN)/python -m pytest tests/gpu -m "gpu or multi_gpu" -v -rA

lock: setup
	$(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu//'

clean:
	rm -rf $(VENV) build dist *.egg-info
