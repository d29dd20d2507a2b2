# Each target does all of its own set-up: a fresh clone needs `make demo` and nothing before it.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENT := build/clients/llama_index/requirements.txt

.PHONY: demo serve test lint format bench web web-test pictures sanitize clean

demo: $(STAMP)
	$(BIN)/looseleaf demo

serve: $(STAMP)
	$(BIN)/looseleaf serve

test: $(STAMP) $(CLIENT) lint
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python benchmarks/core.py

# The studio's page, into the package; needs Node.js 20.19 or later. Without it everything else works.
PAGE := src/looseleaf/studio/static/index.html
WEB := $(wildcard web/src/* web/src/*/*) web/index.html web/vite.config.ts web/one-file.ts

web: $(PAGE)

$(PAGE): web/node_modules/.package-lock.json $(WEB)
	cd web && npm run build

web/node_modules/.package-lock.json: web/package-lock.json
	cd web && npm ci --no-audit --no-fund
	touch $@

web-test: web/node_modules/.package-lock.json
	cd web && npm run check && npm test

# The documents' pictures, of a real server in a real browser (Debian's chromium).
pictures: $(STAMP) web
	cd web && node pictures.mjs ../$(BIN)/looseleaf "$$(command -v chromium)" ../docs/pictures

# Tests of the compiled part with sanitizers in it, which end the run at whatever they find. That
# build has an environment of its own, which borrows the other one's dependencies but not its
# looseleaf. Python does not link the sanitizers, nor the C++ library whose exceptions they watch, so
# these are loaded before it. Leaks are not looked for: Python itself frees much only by ending.
SANITIZED := build/sanitize
CXX_LIBRARY = $(shell $(CXX) -print-file-name=$(1))

sanitize: $(STAMP) $(SANITIZED)/threads_race
	$(SANITIZED)/threads_race
	$(BIN)/python -m venv --without-pip $(SANITIZED)/venv
	cd $(SANITIZED)/venv/lib/python3*/site-packages && \
		ls -d $(abspath $(VENV))/lib/python3*/site-packages > dependencies.pth
	$(BIN)/python -m pip --python $(SANITIZED)/venv/bin/python install --quiet --no-deps \
		--force-reinstall --ignore-installed . --config-settings=install.strip=false \
		--config-settings=cmake.define.LOOSELEAF_SANITIZE=ON --config-settings=build-dir=$(SANITIZED)/cmake
	LD_PRELOAD="$(call CXX_LIBRARY,libasan.so) $(call CXX_LIBRARY,libubsan.so) $(call CXX_LIBRARY,libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		$(SANITIZED)/venv/bin/python -m pytest -p no:cacheprovider -m "not model" tests/executors tests/sampling

# The thread pool and the sampler on it, without Python, whose threads would be seen too.
NATIVE := src/looseleaf/native
$(SANITIZED)/threads_race: tests/native/threads_race.cpp $(wildcard $(NATIVE)/*)
	mkdir -p $(SANITIZED)
	$(CXX) -std=c++20 -O1 -g -fsanitize=thread -pthread -I$(NATIVE) $< \
		$(addprefix $(NATIVE)/, threads.cpp cpu.cpp ranking.cpp sampler.cpp sampler_portable.cpp \
		sampler_avx2.cpp) -o $@

# The compiled part and the dependencies; again whenever one of them may have changed.
$(STAMP): pyproject.toml CMakeLists.txt $(wildcard src/looseleaf/native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24.1"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

# A client that wants other packages than the tests do, and so an environment of its own.
$(CLIENT): benchmarks/clients.py | $(STAMP)
	$(BIN)/python benchmarks/clients.py --install llama_index
	touch $@

clean:
	rm -rf $(VENV) build web/node_modules src/looseleaf/studio/static .pytest_cache .mypy_cache .ruff_cache .hypothesis
