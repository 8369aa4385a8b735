# segue: thin Makefile over CMake. Two commands do everything: `make run` and `make test`.
# SPDX-License-Identifier: MIT
PREFIX  ?= /usr/local
DESTDIR ?=
PROMPT  ?= Why is the sky blue?
MODEL   ?=
ARGS    ?= --greedy
T       ?= 10
BUILD   := build
CMAKE_FLAGS ?=
# Of a new build folder, asked for behind setup, which may have brought it; an old one keeps its own.
generator = $$([ -e $(BUILD)/CMakeCache.txt ] || ! command -v ninja >/dev/null 2>&1 || echo "-G Ninja")

# Where no GPU will run the kernels, a build folder that `make test` creates has them for one target and not optimized, which
# takes a sixth of the time; `make all` and `make install` compile them for every target, optimized.
CUDA_ONE ?= -DSEGUE_CUDA_ONE=OFF -DSEGUE_CUDA_QUICK=OFF
one_target = $$([ -e $(BUILD)/CMakeCache.txt ] || [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || echo "-DSEGUE_CUDA_ONE=ON -DSEGUE_CUDA_QUICK=ON")

.PHONY: all configure setup model mlx run train-demo grpo-demo test quick fuzz fresh install uninstall clean help

all: configure                   ## build the library, the command, the check program and the tests
	@cmake --build $(BUILD) --parallel

configure: setup
	@cmake $(generator) -S . -B $(BUILD) $(CUDA_ONE) $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@mkdir -p $(BUILD) && mv $(BUILD).log $(BUILD)/configure.log

setup:                           ## install the packages that building and running need
	@sh cmake/setup.sh run

model: setup                     ## fetch the default model into the data folder
	@sh cmake/model.sh

mlx: configure                   ## install MLX (Homebrew, else Python packages in build/venv) and configure with it
	@if [ "$$(uname)" = Darwin ]; then brew list mlx >/dev/null 2>&1 || brew install -q mlx; else \
	  { [ -x $(BUILD)/venv/bin/python ] || python3 -m venv $(BUILD)/venv; } && \
	  $(BUILD)/venv/bin/python -m pip install -q --disable-pip-version-check mlx mlx-cpu; fi
	@cmake $(BUILD) -DSEGUE_MLX=ON >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }

run: CUDA_ONE :=
run: configure                   ## answer PROMPT (MODEL=PATH, ARGS="...") with the default model
	@cmake --build $(BUILD) --parallel --target segue >$(BUILD)/build.log 2>&1 || { tail -n 40 $(BUILD)/build.log; exit 1; }
	@if [ -z "$(MODEL)" ]; then sh cmake/model.sh; fi
	@$(BUILD)/segue run $(if $(MODEL),-m "$(MODEL)") -p "$(subst ",\",$(PROMPT))" $(ARGS)

train-demo: CUDA_ONE :=
train-demo: configure            ## train a small model on stories that it makes, in build/train-demo; minutes on two cores
	@cmake --build $(BUILD) --parallel --target segue >$(BUILD)/build.log 2>&1 || { tail -n 40 $(BUILD)/build.log; exit 1; }
	@python3 docs/examples/train_demo.py $(BUILD)/segue $(BUILD)/train-demo

grpo-demo: CUDA_ONE :=
grpo-demo: configure             ## teach a small model balanced brackets by rewards, in build/grpo-demo; minutes on two cores
	@cmake --build $(BUILD) --parallel --target segue >$(BUILD)/build.log 2>&1 || { tail -n 40 $(BUILD)/build.log; exit 1; }
	@mkdir -p $(BUILD)/grpo-demo
	@python3 docs/examples/grpo_demo.py $(BUILD)/segue $(BUILD)/grpo-demo

# What Python packages and the model need is mostly network, so that it comes while the build runs; the second configuration
# finds it.
test:                            ## everything that CI runs: tests, goldens, sanitizers, fuzzers (T seconds each)
	@sh cmake/setup.sh packages
	@{ sh cmake/setup.sh test; sh cmake/model.sh || echo "tests of the default model will be skipped"; } & \
	$(MAKE) --no-print-directory all CUDA_ONE="$(one_target)" CMAKE_FLAGS="$(CMAKE_FLAGS) -DSEGUE_FUZZ_SECONDS=$(T)"; built=$$?; wait; exit $$built
	@cmake $(BUILD) >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@sh tests/run.sh $(BUILD)

quick: CUDA_ONE :=
quick: all                       ## the tests that take seconds
	@ctest --test-dir $(BUILD) -L quick --output-on-failure -j2

fuzz:                            ## run each fuzzer T seconds (T=10)
	@sh cmake/setup.sh test
	@JOBS=2 sh tests/sanitize/build.sh $(BUILD) fuzz && sh tests/fuzz/fuzz.sh $(BUILD) $(T)

fresh:                           ## the two commands in an empty Debian 12 root (needs root and debootstrap)
	@sh cmake/fresh.sh

install: all                     ## DESTDIR= PREFIX=/usr/local
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)" >/dev/null
	@echo "installed under $(DESTDIR)$(PREFIX)"

uninstall: all                   ## remove what install put there
	@sh cmake/uninstall.sh $(BUILD) "$(DESTDIR)" "$(PREFIX)"

clean:                           ## remove the build folder
	@rm -rf $(BUILD)

help:                            ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile | expand -t 12
