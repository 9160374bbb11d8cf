# Segue. `make demo` installs, builds and trains; `make check` passes all tests.

BUILD ?= build
PYTHON := .venv/bin/python
JOBS ?= $(shell nproc)
export PYTHONPATH := $(CURDIR)/$(BUILD)/python

.PHONY: all setup configure build demo wheel check check-long check-sanitizers bench format tidy docs screenshots clean

all: build

# The demo does without what tests and the site need.
SETUP := dev
demo: SETUP :=
setup:
	@tools/setup $(SETUP)

configure: setup
	@cmake --preset default -B $(BUILD) -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON) >$(BUILD).configure.log 2>&1 \
	  || { cat $(BUILD).configure.log; exit 1; }
	@mv $(BUILD).configure.log $(BUILD)/configure.log

build: configure
	@cmake --build $(BUILD) -j $(JOBS)

# The demo builds what Python loads: tests and tools are more than half of a build.
# DEMO_ARGS="--text my.txt --steps 100" and so on; --help lists them.
demo: configure
	@echo "demo: building what Python loads, without tests and tools: a few minutes on two cores, once"
	@cmake --build $(BUILD) -j $(JOBS) --target _runtime _compiler
	@echo "demo: training a small GPT with Segue and then with PyTorch: two or three minutes"
	@$(PYTHON) -u examples/demo.py $(DEMO_ARGS)

# One file that pip installs, in build/wheel (docs/guides/install.md). tools/wheel_check.py tries it on clean systems.
wheel: configure
	@cmake --build $(BUILD) -j $(JOBS) --target _runtime _compiler segue-compile segue-lsp-server segue-opt segue-run segue-translate
	@$(PYTHON) tools/wheel.py --build $(BUILD)

check: build
	@$(PYTHON) tools/check.py --build $(BUILD)

# A check draws some models, graphs and runs of ranks, and samples of long sweeps (SEGUE_SEED); this draws many more and tries all, for
# an hour and a half of a processor.
STITCHINGS := 1000
GRAPHS := 1000
RANK_RUNS := 2000
KILLS := 40
check-long: build
	@env -u SEGUE_SEED $(PYTHON) tools/unit.py --build $(BUILD)
	@env -u SEGUE_SEED $(PYTHON) -m pytest -q $(shell grep -l "^from sample import" test/python/test_*.py)
	@SEGUE_KILLS=$(KILLS) $(PYTHON) -m pytest -q test/python/test_distributed.py -k killed
	@SEGUE_STITCHINGS=$(STITCHINGS) $(BUILD)/bin/SegueRandomStitchTests --gtest_filter='*RandomStitchTest*'
	@SEGUE_STITCHINGS=$(STITCHINGS) $(BUILD)/bin/SegueGpuStitchTests --gtest_filter='*RandomStitchTest*'
	@SEGUE_GRAPHS=$(GRAPHS) $(BUILD)/bin/SegueRandomGraphTests --gtest_filter='*RandomGraphTest*'
	@SEGUE_RANK_RUNS=$(RANK_RUNS) $(BUILD)/bin/SegueRankForecastTests --gtest_filter='RandomRanks.Each*'

# All tests of the runtime under each sanitizer, five minutes of fuzzing per
# target: about an hour.
check-sanitizers: build
	@$(PYTHON) tools/sanitized.py threads --whole --build $(BUILD)
	@$(PYTHON) tools/sanitized.py address --build $(BUILD)
	@$(PYTHON) tools/sanitized.py fuzz --seconds 300 --build $(BUILD)

bench: build
	@$(PYTHON) bench/run.py $(BENCH_ARGS)

format:
	@git ls-files '*.cpp' '*.h' | xargs clang-format-22 -i

tidy:
	@git ls-files 'lib/*.cpp' 'runtime/lib/*.cpp' | xargs clang-tidy-22 -p $(BUILD) --quiet

# First what docs/ keeps of the code, then the notebooks, whose run the site shows, then the site. MkDocs' theme says when its support ends
# (docs/decisions.md), which need not be said each time. Pages are made of what Python loads: no tests are built for them.
docs: configure
	@cmake --build $(BUILD) -j $(JOBS) --target segue-doc _runtime _compiler
	@mkdir -p docs/reference && cp $(BUILD)/docs/*.md docs/reference/
	@$(PYTHON) tools/operators_page.py >$(BUILD)/operators.md && mv $(BUILD)/operators.md docs/operators.md
	@$(PYTHON) tools/site/pictures.py >$(BUILD)/step.svg && mv $(BUILD)/step.svg docs/images/step.svg
	@$(PYTHON) tools/site/architecture.py >$(BUILD)/architecture.svg && mv $(BUILD)/architecture.svg docs/images/architecture.svg
	@$(PYTHON) tools/site/notebooks.py $(BUILD)
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --site-dir $(BUILD)/site >$(BUILD)/site.log 2>&1 || { cat $(BUILD)/site.log; exit 1; }
	@echo "the site is $(BUILD)/site/index.html"

# The pictures of a run's page and of its memory in docs/images; needs chromium-headless-shell.
screenshots: configure
	@cmake --build $(BUILD) -j $(JOBS) --target _runtime _compiler segue-run
	@$(PYTHON) tools/screenshots.py --build $(BUILD)

clean:
	rm -rf $(BUILD)
