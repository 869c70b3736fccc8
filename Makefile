# storebench: 'make help' lists the targets. Everything lives below this folder: .venv, data, stores, runs, report.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3.14 || command -v python3)
VENV ?= .venv
STORES ?= stores
RUNS ?= runs
REPORT ?= report
BUDGET ?= 10 min
BIN := $(VENV)/bin
STAMP := $(VENV)/.storebench-installed
NOW := $(shell date -u +%Y%m%d-%H%M%S)

# Folder of the datasets. Missing ones are downloaded into ./data, or replaced by synthetic stand-ins.
export STOREBENCH_DATA
export STOREBENCH_STORES := $(STORES)
export STOREBENCH_RUNS := $(RUNS)

PAPER_DATASETS := mnist cifar10
PER_FORMAT := --cache warm --max-steps 50

bench = $(BIN)/storebench bench scenarios/$(1).toml --out $(RUNS)/$(NOW)-$(1) --report $(2)

.DEFAULT_GOAL := help
.PHONY: help setup setup-peers data bench-all bench-paper bench-gpu bench-profile bench-audit bench-png bench-hdf5 bench-memory bench-leveldb bench-lmdb bench-ci \
        reference plan-error docs site test test-full test-faults mutants lint clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^##@/{print substr($$0, 5)} /^[a-z0-9%-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Measure

setup: $(STAMP) ## Create the virtual environment and install everything into it

# torch first and by exact version: a looser request pulls gigabytes of GPU libraries. So does this one where pip finds no CPU
# build for this Python: TORCH_INDEX=URL names an index that has one.
TORCH_INDEX ?=
TORCH ?= torch==2.13.0
CONSTRAINTS ?= -c constraints.txt
# pip compiles on one core. This takes half a minute of the set-up, so all cores compile once everything is there, except
# what storebench does not import: the packages' own tests, and what only torch's compiler needs.
UNCOMPILED := /tests?/|/sympy/|/networkx/|/torch/(_inductor|_dynamo|testing|onnx)/
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(CONSTRAINTS)
$(STAMP): pyproject.toml constraints.txt storebench/system/kernel.c
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "storebench needs Python 3.11 or later: make PYTHON=python3.11 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP_INSTALL) -e '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 -x '$(UNCOMPILED)' $(VENV)/lib/python*/site-packages || true  # some packages carry files that do not compile
	touch $@

setup-peers: setup ## Install formats, codecs and an object store of other projects as well (about 850 MB)
	$(PIP_INSTALL) -e '.[peers,imagecodecs,s3]'

data: setup ## Find the datasets, or download them; synthetic stand-ins replace missing ones
	-$(BIN)/storebench data fetch all
	$(BIN)/storebench data list

bench-all: data ## Train and load from every store, cold, in memory and larger than memory, and report (10 minutes on 2 cores)
	$(call bench,answer,$(REPORT)) --budget "$(BUDGET)"

bench-paper: data ## The whole matrix of the paper, cold and warm, for those who have the time (about 50 minutes on 2 cores)
	$(call bench,paper,$(REPORT))

bench-gpu: data ## The paper's networks and ResNet-50 on a GPU, from every backend, cold and in memory (about 13 minutes; CUDA)
	$(call bench,gpu,$(REPORT)-gpu)

bench-%: setup ## Run scenarios/NAME.toml and report on it ('storebench scenarios' lists them), or benchmarks/NAME.py
	if [ -f scenarios/$*.toml ]; then \
	  $(call bench,$*,$(REPORT)-$*); \
	else $(BIN)/python -m benchmarks.$*; fi

bench-profile: setup ## Plant limits into loops, and memory that grows: are they named, is the verdict on ordinary scripts right? (20 minutes)
	$(BIN)/python -m benchmarks.profile_cases
	$(BIN)/python -m benchmarks.profile_loops
	$(BIN)/python -m benchmarks.profile_memory
	$(PIP_INSTALL) albumentations imageio monai opencv-python-headless simplejpeg
	$(BIN)/python -m benchmarks.operations "$${STOREBENCH_DATA:-data}/imagenet"

bench-audit: setup ## Audit loaders with a planted fault, and sound ones: which faults are named, who is accused
	$(BIN)/python -W ignore -m benchmarks.audit_cases

bench-png: BACKENDS := png
bench-hdf5: BACKENDS := hdf5
bench-memory: BACKENDS := memory:python memory:native
bench-leveldb: BACKENDS := leveldb
bench-lmdb: BACKENDS := lmdb
bench-png bench-hdf5 bench-memory bench-leveldb bench-lmdb: setup
	for dataset in $(PAPER_DATASETS); do \
	  $(BIN)/storebench run $(BACKENDS) --dataset $$dataset $(PER_FORMAT) --out $(RUNS)/$(NOW)-$@-$$dataset || exit $$?; \
	done
	$(BIN)/storebench report $(foreach d,$(PAPER_DATASETS),$(RUNS)/$(NOW)-$@-$(d)) --allow-invalid --out $(REPORT)-$@

##@ Maintain

# Two processes for each of two cores: tests wait for disks, for processes that end, and for their own sleeps. A test that
# fails runs once more, and is listed as a rerun: machines are busy.
test: setup ## Run the test suite in four processes, a failed test once more
	$(BIN)/python -m pytest -q -n 4 --reruns 1

test-full: setup ## The same with the tests that take minutes
	$(BIN)/python -m pytest -q -n 4 --reruns 1 --full

test-faults: setup ## Kill, fill the disk, break I/O or interrupt at single file operations, and check the remains (half an hour)
	FAULTS_ALL=1 $(BIN)/python -m pytest -q tests/faults

mutants: setup ## Plant faults into a copy of the sources, one at a time: does a test find each? (half an hour)
	$(BIN)/python -m benchmarks.mutants

lint: setup ## ruff, mypy --strict and import-linter
	$(BIN)/ruff format --check storebench tests benchmarks
	$(BIN)/ruff check storebench tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

# Five fresh processes: how processes differ from each other is most of a benchmark's noise.
bench-ci: setup ## Five timed sessions of the pytest-benchmark suite; 'pytest-benchmark compare' shows them
	rm -rf $(RUNS)/ci && mkdir -p $(RUNS)/ci
	for session in 1 2 3 4 5; do \
	  $(BIN)/python -m pytest benchmarks/suite -q --benchmark-enable --benchmark-only --benchmark-disable-gc \
	    --benchmark-json=$(RUNS)/ci/session-$$session.json > $(RUNS)/ci/session-$$session.log || { cat $(RUNS)/ci/session-$$session.log; exit 5; }; \
	done

REFERENCE := answer roofline paper codecs peers ranks overlap datastore ltfb lmdbio-ranks lmdbio-limited
reference: data ## Measure results/reference again (about two hours and a half); REFERENCE="answer" measures a part of it
	rm -rf $(addprefix results/reference/,$(REFERENCE))
	for name in $(REFERENCE); do $(BIN)/storebench bench scenarios/$$name.toml --out results/reference/$$name || exit $$?; done

continued = $(BIN)/storebench bench scenarios/$(1).toml --stores $(STORES) --out $(RUNS)/$(1) $(if $(wildcard $(RUNS)/$(1)/run.json),--resume)
plan-error: data ## Measure how wrong 'storebench plan' is, and write the errors that it prints (under 20 minutes); goes on with the runs in runs/
	$(call continued,planner)
	$(call continued,plan-error)
	$(BIN)/python -m benchmarks.plan_error $(RUNS)/planner $(RUNS)/plan-error --write

docs: setup ## Write what is made from the code and from results/reference: pages, figures, outputs of notebooks
	$(BIN)/python -m tests.docs.generate
	$(BIN)/python -m tests.docs.figures
	$(BIN)/python -m tests.docs.notebooks

site: setup ## Build the site into site/: the documentation, and the page of all results (site/all.html)
	$(PIP_INSTALL) -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q docs site
	$(BIN)/python -m tests.docs.machines results/machines site

clean: ## Remove stores, runs and reports (never data, results or the virtual environment)
	rm -rf $(STORES) $(RUNS) $(REPORT) $(REPORT)-*

distclean: clean ## Remove the virtual environment as well
	rm -rf $(VENV)
