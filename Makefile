# The commands of the project. Each can be the first one typed on a fresh Debian or Ubuntu machine: it installs what is
# missing (system packages by apt-get, Python packages in .venv) and builds what is stale. Full logs: build/logs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-builtin-rules --no-print-directory

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CTEST_PARALLEL_LEVEL ?= $(CMAKE_BUILD_PARALLEL_LEVEL)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

STEP := tools/step.sh
STAMPS := .venv/stamps
PIP := .venv/bin/python -m pip install
PACKAGES := build-essential cmake ninja-build pkg-config libhwy-dev libgtest-dev libbenchmark-dev python3-venv python3-dev
TEST_PACKAGES := qemu-user
NEON_PACKAGES := g++-aarch64-linux-gnu qemu-user
SANITIZER_PACKAGES := clang-19 libclang-rt-19-dev libomp-19-dev
CXX_FILES := $(shell find include src problems reference tests fuzz bench examples python -name '*.h' -o -name '*.cc' -o -name '*.cpp' -o -name '*.c')
PYTHON_SOURCES := CMakeLists.txt pyproject.toml README.md \
  $(shell find include src problems reference bench python cmake -type f -not -path '*/__pycache__/*')

.PHONY: build demo test bench test-large test-neon valgrind golden sanitize fuzz lint format clean help system library python golden-program

build: library python  ## the library, its tests and benchmarks, and the Python package in .venv

demo: python $(STAMPS)/demo  ## checks the real problems of cases/, learns frequencies in PyTorch, trains a model both ways
	@for cases in cases/*.csv; do .venv/bin/gyrograd check $$cases; done
	@.venv/bin/python examples/torch_learn_frequencies.py
	@.venv/bin/python examples/transformers_switch.py

test: build $(STAMPS)/test  ## every test; the last line counts them
	@tools/system_packages.sh $(TEST_PACKAGES)
	@.venv/bin/python tools/run_tests.py

test-large: build  ## what needs more than 4 GB of memory
	@.venv/bin/python tools/run_tests.py --large

test-neon: system  ## the golden hashes on 64-bit Arm: a cross compiler's build, under qemu; the last line counts
	@tools/system_packages.sh $(NEON_PACKAGES)
	@$(STEP) neon-configure "64-bit Arm: configure" cmake --preset neon
	@$(STEP) neon-build "64-bit Arm: library, golden problems" cmake --build --preset neon --target golden
	@qemu-aarch64 -L /usr/aarch64-linux-gnu build/neon/tests/golden/golden check tests/golden/hashes.txt

valgrind: system  ## the golden problems under valgrind: no byte but the tensors' own elements is touched
	@tools/system_packages.sh valgrind
	@$(MAKE) golden-program
	@valgrind -q --error-exitcode=1 build/release/tests/golden/golden run 5

golden: golden-program  ## writes the golden hashes anew, where all CPU targets of this machine agree
	@build/release/tests/golden/golden print >build/hashes.txt
	@mv build/hashes.txt tests/golden/hashes.txt

bench: build $(STAMPS)/test  ## the measured figures: a table, CSV files and a plot in build/bench (QUICK=1: a subset)
	@.venv/bin/python bench/run.py $(if $(QUICK),--quick)

sanitize: system  ## the C++ tests under address, undefined-behaviour and thread sanitizers
	@tools/system_packages.sh $(SANITIZER_PACKAGES)
	@for preset in asan ubsan tsan; do \
	  $(STEP) $$preset-configure "$$preset: configure" cmake --preset $$preset; \
	  $(STEP) $$preset-build "$$preset: build" cmake --build --preset $$preset; \
	  $(STEP) $$preset-test "$$preset: C++ tests" ctest --preset $$preset; \
	done

fuzz: system  ## the fuzzers, SECONDS=60 each: a line a target; new inputs in build/fuzz
	@tools/system_packages.sh $(SANITIZER_PACKAGES)
	@$(STEP) fuzz-configure "fuzz: configure" cmake --preset fuzz
	@$(STEP) fuzz-build "fuzz: build" cmake --build --preset fuzz
	@python3 tools/run_fuzzers.py --seconds $(or $(SECONDS),60)

lint: $(STAMPS)/lint  ## what format would change, and ruff's findings
	@tools/system_packages.sh clang-format-19
	@$(STEP) clang-format "C++ format" clang-format-19 --dry-run -Werror $(CXX_FILES)
	@$(STEP) ruff-format "Python format" .venv/bin/ruff format --check .
	@$(STEP) ruff-check "Python lint" .venv/bin/ruff check .

format: $(STAMPS)/lint  ## formats C++ and Python files in place
	@tools/system_packages.sh clang-format-19
	@clang-format-19 -i $(CXX_FILES)
	@.venv/bin/ruff format -q .

clean:  ## removes what was built; .venv stays
	@rm -rf build $(STAMPS)/gyrograd

help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Configured each time: valgrind's header may be new.
golden-program: system
	@$(STEP) golden-configure "C++ configure" cmake --preset release
	@$(STEP) golden-build "library, golden problems" cmake --build --preset release --target golden

system:
	@tools/system_packages.sh $(PACKAGES)

library: system
	@if [ ! -f build/release/build.ninja ]; then \
	  $(STEP) configure "C++ configure" cmake --preset release; \
	fi
	@$(STEP) build "C++ library, tests and benchmarks" cmake --build --preset release

python: $(STAMPS)/gyrograd

$(STAMPS)/venv: | system
	@$(STEP) venv "Python environment in .venv" python3 -m venv .venv
	@mkdir -p $(STAMPS) && touch $@

# What pyproject.toml names under [build-system]: installed once, so that a rebuild of the package is incremental.
$(STAMPS)/build-tools: pyproject.toml $(STAMPS)/venv
	@$(STEP) pip-build-tools "Python build tools" $(PIP) -q \
	  $$(.venv/bin/python tools/requirements.py build)
	@touch $@

$(STAMPS)/gyrograd: $(PYTHON_SOURCES) $(STAMPS)/build-tools
	@$(STEP) pip-gyrograd "Python package in .venv" \
	  $(PIP) --no-build-isolation --config-settings=build-dir=build/python .
	@touch $@

$(STAMPS)/demo: pyproject.toml tools/requirements.py $(STAMPS)/gyrograd
	@$(STEP) pip-demo "PyTorch, transformers" $(PIP) -q $$(.venv/bin/python tools/requirements.py demo)
	@touch $@

$(STAMPS)/test: pyproject.toml tools/requirements.py $(STAMPS)/gyrograd
	@$(STEP) pip-test "Python packages of the tests (PyTorch, transformers, diffusers, JAX)" \
	  $(PIP) -q $$(.venv/bin/python tools/requirements.py demo test)
	@touch $@

$(STAMPS)/lint: $(STAMPS)/venv
	@$(STEP) pip-lint "ruff" $(PIP) -q ruff
	@touch $@
