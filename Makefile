# The main targets are `make sweep` and `make test`. PIP_ARGS is passed to pip.
PYTHON ?= python3
PIP_ARGS ?=
VENV ?= .venv
FRAMEWORKS ?= .venv-frameworks
UNPINNED ?= .venv-unpinned
CONSTRAINTS = -c constraints.txt
BIN = $(VENV)/bin
PIP_INSTALL = -m pip install --disable-pip-version-check --no-compile --quiet $(PIP_ARGS) $(CONSTRAINTS)
PIP_UNPINNED = $(filter-out $(CONSTRAINTS),$(PIP_INSTALL))
PIP = $(BIN)/python $(PIP_INSTALL)
FRAMEWORKS_PIP = $(FRAMEWORKS)/bin/python $(PIP_INSTALL)

# The grid of `make sweep`: a part of `--grid published-003`, small enough for four minutes on 2 cores.
SWEEP_GRID ?= --layers 1 2 --hidden 32 64 100 128 200 --sequence 32 64 128 --batch 1 2 4 8
SWEEP_OUT ?= data/local
DEADLINE_US ?= 1000
LITERATURE_OUT ?= data/literature
# Seed of the random numbers in `make test`; `make SEED=7 test` changes it, SEEDS=30 repeats the random tests under 30.
# Of some heavy tests half of the cases run, as a new seed chooses; ALL=1 runs all.
SEED ?= 1
SEEDS ?= 1
ALL ?=
# Else each of the hundreds of processes of the tests compiles the package again.
unexport PYTHONDONTWRITEBYTECODE
TEST_PROCESSES ?= 2
PYTEST = -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --durations 20

.PHONY: help sweep gpu test test-elsewhere test-gpu gpu-session unpinned environments test-frameworks test-networks types docs literature lint check-notebooks hook figures lab clean

help:
	@echo "make sweep            record a grid of LSTMs on this machine (ONNX Runtime), draw it, print which meet DEADLINE_US=$(DEADLINE_US)"
	@echo "make gpu              install what the driver of an NVIDIA GPU needs: TensorRT and PyCUDA, without the CUDA toolkit"
	@echo "make test             run the tests, in 5 minutes, the installation included (times: data/measured/test-times.csv)"
	@echo "make test-elsewhere   run the tests that can depend on it as on other processors and for other users, in 2 minutes"
	@echo "make test-frameworks  run the slow tests and those that need other frameworks, in $(FRAMEWORKS), in 12 minutes"
	@echo "make unpinned         run the tests with the newest versions of all packages, in $(UNPINNED)"
	@echo "make test-networks    run networks of 11 packages, which pip downloads (200 MB, once), in a minute"
	@echo "make test-gpu         run the tests of a GPU; fails where there is none"
	@echo "make gpu-session      record on a GPU that is lent for half an hour: CALL=1, then 2, then 3"
	@echo "make types            check the types of the packages with basedpyright, in a minute"
	@echo "make docs             build a site of README.md, the pages in docs/ and the Python API in build/docs, in a minute"
	@echo "make literature       record the published benchmarks in that environment; prints first how long it takes"
	@echo "make figures          redraw the figures of the recordings in data/, and their coverage of the literature"
	@echo "make lab              open JupyterLab on this folder, with notebooks/00_overview.ipynb"
	@echo "make hook             strip notebook outputs from commits with a git hook; FILTER=1: with a clean filter"
	@echo "make clean            remove the environments and the recordings of make sweep"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "lstm_trt needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "cannot create $(VENV): install venv for $(PYTHON) (Debian: apt install python3-venv)" >&2; exit 2; }

# Each installs the package with the extras that it needs, and those of the stamps before it: one installation, not three.
# pip compiles on one core, so it is done afterwards on all, without what few programs load.
UNCOMPILED = /tests/|/(debugpy|networkx|pip|selenium|setuptools|sympy|torch/_inductor|torch/distributed)/
$(VENV)/.core: EXTRAS = [record]
$(VENV)/.lab: EXTRAS = [lab]
$(VENV)/.dev: EXTRAS = [lab,dev]
$(VENV)/.core $(VENV)/.lab $(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), a few minutes the first time"
	@$(PIP) torch
	@$(PIP) -e '.$(EXTRAS)'
	@$(BIN)/python -m compileall -qq -j 0 -x '$(UNCOMPILED)' $(VENV)/lib || true  # some packages contain files for other versions of Python
	@touch $(VENV)/.core $(if $(findstring lab,$(EXTRAS)),$(VENV)/.lab) $@

# PyCUDA is built from source, which needs the CUDA headers and a libcuda to link with: the headers are those of HEADERS,
# the libcuda is one without content. What was built is kept in WHEELS, under all that it depends on: pip would reuse what
# it built for other headers. Without PyCUDA, cuda-bindings drive the GPU.
HEADERS ?= nvidia-cuda-runtime==13.* nvidia-cuda-profiler-api==13.*
WHEELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lstm_trt-wheels
PYCUDA_OPTIONS = --config-settings='--global-option=--conf:CUDA_ENABLE_CURAND=False;CUDA_ROOT=None'
PYCUDA_WHEEL = $*/bin/python -m pip wheel --disable-pip-version-check --quiet $(PIP_ARGS) -c constraints.txt --no-deps
%/.pycuda: constraints.txt | %/bin/python
	@wheel="$(WHEELS)/pycuda-$$({ $*/bin/python -VV; uname -m; $(CC) --version; grep -i '^pycuda==' constraints.txt; \
	    echo '$(HEADERS) $(PYCUDA_CFLAGS)'; } | sha256sum | cut -c1-16)"; \
	{ ls "$$wheel"/*.whl > /dev/null 2>&1 \
	  || { echo "building PyCUDA for $*, two to four minutes, once" \
	    && $*/bin/python $(PIP_INSTALL) --no-deps --upgrade --target $*/cuda $(HEADERS) \
	    && echo 'int cuInit(unsigned flags) { return flags; }' \
	      | $(CC) -shared -fPIC -Wl,-soname,libcuda.so.1 -o $*/cuda/libcuda.so -x c - \
	    && CFLAGS="$$CFLAGS $(PYCUDA_CFLAGS)" LIBRARY_PATH="$(abspath $*)/cuda" \
	      CPATH="$$(printf '%s:' "$(abspath $*)"/cuda/nvidia/*/include)" \
	      $(PYCUDA_WHEEL) --no-cache-dir $(PYCUDA_OPTIONS) --wheel-dir "$$wheel.new" pycuda \
	    && rm -rf "$$wheel" && mv "$$wheel.new" "$$wheel"; }; } \
	  && $*/bin/python $(PIP_INSTALL) "$$wheel"/*.whl && touch $@ \
	  || echo "PyCUDA cannot be built here, for the reason above: cuda-bindings drive the GPU"

# What depends on the CUDA version of the driver is not pinned. TENSORRT=rtx installs TensorRT for RTX instead.
TENSORRT ?= tensorrt
gpu:
	@$(PYTHON) benchmarks/gpu_packages.py $(TENSORRT)
	@$(MAKE) --no-print-directory $(VENV)/.dev
	@$(BIN)/python $(PIP_UNPINNED) $$($(PYTHON) benchmarks/gpu_packages.py $(TENSORRT))
	@$(MAKE) --no-print-directory $(VENV)/.pycuda HEADERS="$$($(PYTHON) benchmarks/gpu_packages.py headers)"
	@$(BIN)/python -c 'from lstm_trt.runtimes.cuda import _cuda; print("the GPU is driven by", _cuda.driver_layer())'
	@$(BIN)/lstm-trt doctor

sweep: $(VENV)/.core
	$(BIN)/lstm-trt sweep $(SWEEP_GRID) --runtime onnxruntime --trials 1000 --out $(SWEEP_OUT)
	$(BIN)/lstm-trt summarize $(SWEEP_OUT) --figures figures --deadline-us $(DEADLINE_US)

test: $(VENV)/.dev lint
	$(BIN)/python $(PYTEST) -m "not heavy" --seed $(SEED) --seeds $(SEEDS)

# The surroundings stand in tests/support/elsewhere.py; ELSEWHERE="one-core spaces" runs some of them.
test-elsewhere: $(VENV)/.dev
	$(BIN)/python -m tests.support.elsewhere --seed $(SEED) $(ELSEWHERE)

# The versions that pip takes without constraints.txt, also those of what has been installed there before.
unpinned:
	@rm -f $(UNPINNED)/.dev
	@$(MAKE) --no-print-directory VENV=$(UNPINNED) CONSTRAINTS= PIP_ARGS="$(PIP_ARGS) --upgrade --upgrade-strategy eager" \
	  $(UNPINNED)/.dev
	$(UNPINNED)/bin/python $(PYTEST) -m "not heavy" --seed $(SEED)

# Only these files are collected: the others may need packages that a machine with a GPU lacks.
GPU_TESTS = tests/lstm_trt/machine/test_machine.py tests/lstm_trt/runtimes/test_tensorrt_runtime.py tests/lstm_trt/runtimes/test_torch_runtimes.py
test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu --must-pass $(GPU_TESTS)

# pip downloads the packages into this folder, where they stay; those that it cannot download are skipped.
NETWORKS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lstm_trt-networks
test-networks: $(VENV)/.dev
	NETWORKS="$(NETWORKS)" $(BIN)/python -m pytest -q -rs tests/networks.py

# On a GPU that is lent for half an hour; needs no .venv. Call 1, then 2, then 3; SECONDS= for less than 560.
CALL ?= 1
gpu-session:
	@$(PYTHON) benchmarks/gpu_session.py $(CALL) $(if $(SECONDS),--seconds $(SECONDS))

lint: $(VENV)/.dev check-notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

$(VENV)/.types: $(VENV)/.dev
	@$(PIP) basedpyright
	@touch $@

types: $(VENV)/.types
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/basedpyright --pythonpath $(BIN)/python -p .ci/types-strict.json

$(VENV)/.docs: $(VENV)/.core
	@$(PIP) sphinx myst-parser furo
	@touch $@

# A broken link is a warning, and a warning is an error. Of pages that stayed the same Sphinx would not look for one again.
docs: $(VENV)/.docs
	@rm -rf build/docs build/doctrees
	$(BIN)/python -m sphinx -c docs -d build/doctrees -b html -q -W --keep-going . build/docs
	@echo "build/docs/index.html"

# Checks the committed notebooks; those of the working copy may keep their outputs.
check-notebooks: $(VENV)/.dev
	@$(BIN)/python .githooks/strip_staged.py --check

hook: $(VENV)/.lab
	@$(BIN)/python .githooks/install $(if $(filter 1,$(FILTER)),--filter)

# Other frameworks in an environment of their own, which has the packages of $(VENV) too, this one among them: $(VENV)
# stays as users have it, nothing is installed twice, and tests may run meanwhile.
$(FRAMEWORKS)/bin/python: | $(VENV)/.dev
	@$(BIN)/python -m venv --without-pip $(FRAMEWORKS)
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > "$$($@ -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/present.pth"
	@mkdir -p $(FRAMEWORKS)/share && ln -sfn "$(abspath $(VENV))/share/jupyter" $(FRAMEWORKS)/share/jupyter

$(FRAMEWORKS)/.frameworks: pyproject.toml constraints.txt | $(FRAMEWORKS)/bin/python
	@echo "installing into $(FRAMEWORKS), about 2 GB, some minutes the first time"
	@$(FRAMEWORKS_PIP) 'lstm-trt[frameworks,cluster]'
	@touch $@

# For tests, which no optimization would make faster.
$(FRAMEWORKS)/.pycuda: PYCUDA_CFLAGS = -O0 -g0
$(FRAMEWORKS)/.pycuda: | $(FRAMEWORKS)/.frameworks

# What `make test-frameworks` needs; `.ci/run` installs it beside the first tests.
environments: $(FRAMEWORKS)/.pycuda

# Heavy tests often wait: one process more than there are cores.
test-frameworks: environments
	$(FRAMEWORKS)/bin/python $(PYTEST) -n $(shell expr 1 + $(TEST_PROCESSES)) -m "heavy or frameworks" $(if $(filter 1,$(ALL)),--all)

# Resumes if interrupted.
literature: $(FRAMEWORKS)/.frameworks
	$(FRAMEWORKS)/bin/python -m lstm_literature plan --out $(LITERATURE_OUT)

XEON = batch c deadline deep grid large-batch layers near stream versions
figures: $(VENV)/.core
	@for topic in $(wildcard data/epyc/*/) $(addprefix data/xeon/,$(addsuffix /,$(XEON))); do \
	  out=figures/$${topic#data/}; \
	  $(BIN)/lstm-trt summarize $$topic --figures $$out --deadline-us $(DEADLINE_US) > /dev/null \
	  && $(BIN)/lstm-trt scaling $$topic --figures $$out > /dev/null || exit 1; \
	done
	@$(BIN)/lstm-literature table --out data/xeon/literature --figures figures/xeon/literature > /dev/null
	@$(BIN)/lstm-literature table --coverage --format csv --out data/xeon/literature \
	  > data/measured/literature-coverage.csv
	@for topic in epyc/arrivals xeon/interrupted xeon/interruptions; do \
	  $(BIN)/lstm-trt outliers data/$$topic --figures figures/$$topic > /dev/null || exit 1; \
	done
	@$(BIN)/lstm-trt summarize data/xeon/own-network --deadline-us 100 --figures figures/xeon/own-network > /dev/null
	@for topic in confirm deadline; do \
	  $(BIN)/lstm-trt verdict data/epyc/$$topic --deadline-us $(DEADLINE_US) --figures figures/epyc/$$topic > /dev/null; \
	  case $$? in 0|1|3) ;; *) exit 1 ;; esac; \
	done
	@$(BIN)/lstm-trt report data/epyc/grid --deadline-us 1000 --percentile 99 --out docs/examples/report.html > /dev/null; \
	  case $$? in 0|1|3) ;; *) exit 1 ;; esac
	@$(BIN)/lstm-trt verdict data/xeon/beside --runtime c --hidden 64 --deadline-us $(DEADLINE_US) --figures figures/xeon/beside > /dev/null; \
	  case $$? in 0|1|3) ;; *) exit 1 ;; esac
	@$(BIN)/python benchmarks/verdict_rates.py --figure figures/until-decided.png

lab: $(VENV)/.lab
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/00_overview.ipynb

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(UNPINNED) $(SWEEP_OUT) figures/sweep-*.png
