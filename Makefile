# Every target sets up .venv by itself; all that is needed is Python 3.11 or newer and make.
PYTHON ?= python3
# Options for `spillgrad train`, `spillgrad bench kernels` or pytest: make train ARGS="--steps 50"
ARGS ?=
# pytest workers: one per core of the smallest supported machine.
WORKERS ?= 2
# 0 runs the CUDA kernels' tests on a GPU.
SIMULATED ?= 1
# A clone of github.com/data-apis/array-api-tests.
ARRAY_API_TESTS ?= ../array-api-tests

# Hundreds of tests start a process, each of which would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary
PYTHON_IS_NEW := import sys; sys.version_info >= (3, 11) or sys.exit( \
	f"spillgrad: got Python {sys.version.split()[0]}, wanted 3.11 or newer; name one with make PYTHON=python3.12")

.DEFAULT_GOAL := help
.PHONY: help train bench test test-exhaustive test-all test-cuda check-gpu test-nojit test-page test-peers test-array-api docs wheel test-python test-arm fuzz lint format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

train: $(VENV)/installed  ## train a small GPT whose saved tensors live on disk
	$(BIN)/spillgrad train --ram-budget 64MiB $(ARGS)

bench: $(VENV)/installed-peers  ## time kernels, training, hooks and the store beside their peers, for the site (half an hour)
	$(BIN)/spillgrad bench kernels --write docs/benchmarks $(ARGS)
	$(BIN)/spillgrad bench train --write docs/benchmarks
	$(BIN)/spillgrad bench models --write docs/benchmarks
	$(BIN)/spillgrad bench growth --write docs/benchmarks
	$(BIN)/spillgrad bench hooks --write docs/benchmarks
	$(BIN)/spillgrad bench spill --write docs/benchmarks
	$(BIN)/spillgrad bench memory --write docs/benchmarks
	$(BIN)/spillgrad bench fit --write docs/benchmarks
	$(BIN)/spillgrad bench ranks --write docs/benchmarks

test: $(VENV)/installed-dev  ## run the tests
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile -m "not exhaustive" $(ARGS)

test-exhaustive: $(VENV)/installed-dev  ## run the tests that take long, or are many of a kind
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist load -m exhaustive $(ARGS)

# Where ARRAY_API_TESTS is a clone of the array API's suite, that too. Beside these, `make test-python` and `make test-arm`
# try what changes less often.
test-all: test test-exhaustive  ## run what continuous integration runs (40 minutes): also PyTorch, Paddle, CUDA's simulator, the wheel, the site
	@$(MAKE) --no-print-directory test-cuda test-peers wheel test-page
	@! test -d "$(ARRAY_API_TESTS)/array_api_tests" || $(MAKE) --no-print-directory test-array-api

# A process has either the simulator or a GPU: these tests run apart from the others.
test-cuda: $(VENV)/installed-dev  ## run the CUDA kernels in Numba's simulator; with SIMULATED=0, on the GPU
	NUMBA_ENABLE_CUDASIM=$(SIMULATED) $(BIN)/python -m pytest tests/cuda --numprocesses $(WORKERS) $(ARGS)

# With the Python that has PyTorch and CUDA's packages: nothing is installed for it.
check-gpu:  ## run all CUDA tests and benchmarks on the GPU of this machine (ten minutes)
	$(PYTHON) tools/check_gpu.py $(ARGS)

# Uncompiled arithmetic warns where compiled arithmetic quietly gives NaN or infinity.
test-nojit: $(VENV)/installed-dev  ## run the kernels uncompiled (minutes) and report which lines ran
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest -W ignore::RuntimeWarning tests/kernels $(ARGS)
	$(BIN)/coverage report --include "kernels/*"

# A process that has other frameworks' threads beside the kernels' would slow both: these tests run apart from the others.
test-peers: $(VENV)/installed-peers  ## run what serves PyTorch and Paddle with the real ones (which it installs)
	$(BIN)/python -m pytest tests/interop --numprocesses $(WORKERS) $(ARGS)

# It runs in the suite's folder, whose conftest.py has options for it. Its examples are the same in every run.
test-array-api: array-api-suite $(VENV)/installed-array-api  ## run the array API standard's test suite, of which ARRAY_API_TESTS is a clone
	cd "$(ARRAY_API_TESTS)" && ARRAY_API_TESTS_MODULE=spillgrad.array_api \
		HYPOTHESIS_STORAGE_DIRECTORY="$(CURDIR)/.hypothesis" "$(CURDIR)/$(BIN)/python" -m pytest array_api_tests \
		--quiet --disable-warnings -p no:cacheprovider --xfails-file "$(CURDIR)/tests/array_api_excluded.txt" \
		--hypothesis-derandomize --disable-deadline --max-examples 20 --numprocesses $(WORKERS) $(ARGS)

.PHONY: array-api-suite
array-api-suite:
	@test -d "$(ARRAY_API_TESTS)/array_api_tests" || { echo "spillgrad: make test-array-api: there is no suite in" \
		"$(ARRAY_API_TESTS); get it with git clone --recurse-submodules https://github.com/data-apis/array-api-tests," \
		"and name its folder: make test-array-api ARRAY_API_TESTS=FOLDER" >&2; exit 1; }

fuzz: $(VENV)/installed-dev  ## read segments and journals that were changed at random, others each time, for minutes
	SPILLGRAD_FUZZ_EXAMPLES=20000 $(BIN)/python -m pytest tests/inspection/test_segment_fuzz.py \
		tests/inspection/test_journal_fuzz.py $(ARGS)

# A browser of Playwright's own comes from no package registry; Debian's is one package.
test-page: $(VENV)/installed-page docs  ## open a report and the site in a real browser, Debian's chromium (installed if missing)
	@command -v chromium >/dev/null || $(MAKE) --no-print-directory chromium
	$(BIN)/python -m pytest tests/page --numprocesses $(WORKERS) $(ARGS)

# The pages' examples are executed, those for PyTorch and Paddle too. What did not change is not executed again.
docs: $(VENV)/installed-docs  ## build the site of docs/ into docs/_build/html
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html
	$(BIN)/python -m pytest tests/docs/test_benchmark_pages.py

# The tests install the wheel into an environment of its own, and run there what README and pages show.
wheel: packages  ## build the wheel and the source distribution into dist/, and try the wheel
	$(BIN)/python -m pytest tests/wheel $(ARGS)

.PHONY: packages
packages: $(VENV)/installed-dev
	rm -rf dist
	$(BIN)/python -m hatchling build

# Each Python of this machine, and, as root where there is debootstrap, those of Debian's stable and unstable releases.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
TRIED := tests/spill/test_save_on_disk.py tests/ops/test_shape.py tests/ops/test_creation.py
test-python: packages  ## try the wheel with other releases of Python
	@for python in $(PYTHONS); do if $$python --version >/dev/null 2>&1; then \
		sh tools/try_wheel.sh $$python . .venv/tried-$$python $(TRIED) || exit 1; fi; done
	@if command -v debootstrap >/dev/null && test "$$(id -u)" = 0; then for suite in trixie sid; do \
		sh tools/try_in_debian.sh $$suite "$$(dpkg --print-architecture)" $(TRIED) || exit 1; done; \
	else echo "spillgrad: make test-python: no Debian was tried; that needs root and debootstrap"; fi

# The processor is emulated: a test takes many times as long.
test-arm: packages  ## try the wheel and the matrix products on ARM: as root, with debootstrap and qemu-user-static
	sh tools/try_in_debian.sh trixie arm64 tests/kernels/cpu/test_matmul.py $(ARGS)

.PHONY: chromium
chromium:
	@command -v apt-get >/dev/null || { echo "spillgrad: make test-page: there is no chromium here, and no apt-get to" \
		"install it; install the browser chromium by hand" >&2; exit 1; }
	$(SUDO) apt-get update -qq
	$(SUDO) apt-get install -qq -y --no-install-recommends chromium

lint: $(VENV)/installed-dev  ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev  ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv, caches and build results (never what was trained)
	rm -rf $(VENV) dist docs/_build docs/reference docs/command_line.md docs/benchmarks/*.md docs/benchmarks/*.svg .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find spillgrad kernels tools tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/made:
	@$(PYTHON) -c '$(PYTHON_IS_NEW)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: pyproject.toml | $(VENV)/made
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/made
	$(PIP) --editable ".[test,lint]"
	@touch $(VENV)/installed $@

$(VENV)/installed-peers: $(VENV)/installed-dev $(VENV)/installed-bench
	$(PIP) --editable ".[peers]"
	@touch $@

$(VENV)/installed-array-api: $(VENV)/installed-dev
	$(PIP) --editable ".[array-api]"
	@touch $@

$(VENV)/installed-page: $(VENV)/installed-dev
	$(PIP) --editable ".[page]"
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed-peers
	$(PIP) --editable ".[docs]"
	@touch $@

# The index of builds without CUDA, which are a tenth of the size.
$(VENV)/installed-bench: $(VENV)/installed
	$(PIP) --extra-index-url https://download.pytorch.org/whl/cpu --editable ".[bench]"
	@touch $@
