# storebench: 'make help' lists the targets. Everything lives below this folder: .venv, data, stores, runs, report.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
STORES ?= stores
RUNS ?= runs
REPORT ?= report
BIN := $(VENV)/bin
STAMP := $(VENV)/.storebench-installed
NOW := $(shell date -u +%Y%m%d-%H%M%S)

# Folder of the datasets. Missing ones are downloaded into ./data, or replaced by synthetic stand-ins.
export STOREBENCH_DATA
export STOREBENCH_STORES := $(STORES)
export STOREBENCH_RUNS := $(RUNS)

PAPER_DATASETS := mnist cifar10
PER_FORMAT := --cache warm --max-steps 50

# Exit code 5 with records means that replicates failed. The others are measured and reported all the same; the target fails in the end.
run = $(RUNS)/$(NOW)-$(1)
bench = $(BIN)/storebench bench scenarios/$(1).toml --out $(run) || { failed=$$?; [ $$failed -eq 5 ] && [ -s $(run)/records.jsonl ] || exit $$failed; }

.DEFAULT_GOAL := help
.PHONY: help setup data bench-all bench-paper bench-smoke bench-png bench-hdf5 bench-memory bench-leveldb bench-lmdb \
        bench-storage bench-roofline bench-gpu bench-codecs bench-decoders bench-workers bench-loaders bench-ranks bench-lmdbio bench-lmdbio-ranks bench-lmdbio-limited scaling-io bench-readers bench-direct bench-window bench-handoff \
        bench-overhead bench-nodes bench-sampling bench-counters bench-prep bench-ci reference reference-gpu \
        figures docs notebooks report test test-full test-faults lint clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create the virtual environment and install everything into it

# torch first and by exact version: a looser request pulls gigabytes of GPU libraries. So does this one where pip finds no CPU
# build for this Python: TORCH_INDEX=URL names an index that has one.
TORCH_INDEX ?=
# pip compiles on one core. This takes half a minute of the set-up, so all cores compile once everything is there, except
# what storebench does not import: the packages' own tests, and what only torch's compiler needs.
UNCOMPILED := /tests?/|/sympy/|/networkx/|/torch/(_inductor|_dynamo|testing|onnx)/
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "storebench needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.11 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP_INSTALL) -e '.[dev]'
	@$(BIN)/python -c "import plyvel" 2>/dev/null || \
	  $(PIP_INSTALL) plyvel >$(VENV)/plyvel.log 2>&1 || \
	  echo "LevelDB is left out: plyvel has no wheel for this Python and does not build without LevelDB's headers. Install them (Debian: libleveldb-dev), then run: $(BIN)/pip install -c constraints.txt plyvel"
	@$(BIN)/python -m compileall -qq -j 0 -x '$(UNCOMPILED)' $(VENV)/lib/python*/site-packages || true  # some packages carry files that do not compile
	touch $@

data: setup ## Find the datasets, or download them; synthetic stand-ins replace missing ones
	$(BIN)/storebench data fetch all --optional
	$(BIN)/storebench data list

bench-all: data ## Convert, measure as precisely as a fixed time allows, and report (about 15 minutes on 2 cores)
	failed=0; $(call bench,answer); $(call bench,roofline); \
	$(BIN)/storebench report $(call run,answer) $(call run,roofline) --allow-invalid --out $(REPORT) || exit $$?; \
	exit $$failed

bench-paper: data ## The whole matrix of the paper, cold and warm, for those who have the time (about 50 minutes on 2 cores)
	failed=0; $(call bench,paper); \
	$(BIN)/storebench report $(call run,paper) --allow-invalid --out $(REPORT) || exit $$?; \
	exit $$failed

bench-smoke: setup ## The same in miniature, in about two minutes; its figures mean nothing
	$(BIN)/storebench bench scenarios/smoke.toml --out $(RUNS)/$(NOW)-smoke
	$(BIN)/storebench report $(RUNS)/$(NOW)-smoke --out $(REPORT)-smoke

bench-png: BACKENDS := png
bench-hdf5: BACKENDS := hdf5
bench-memory: BACKENDS := memory:python memory:native
bench-leveldb: BACKENDS := leveldb
bench-lmdb: BACKENDS := lmdb
bench-png: setup ## Train from PNG files: MNIST and CIFAR-10, warm
bench-hdf5: setup ## Train from HDF5
bench-memory: setup ## Train from arrays in memory, gathered in Python and in C++
bench-leveldb: setup ## Train from LevelDB
bench-lmdb: setup ## Train from LMDB
bench-png bench-hdf5 bench-memory bench-leveldb bench-lmdb:
	for dataset in $(PAPER_DATASETS); do \
	  $(BIN)/storebench run $(BACKENDS) --dataset $$dataset $(PER_FORMAT) --out $(RUNS)/$(NOW)-$@-$$dataset || exit $$?; \
	done
	$(BIN)/storebench report $(foreach d,$(PAPER_DATASETS),$(RUNS)/$(NOW)-$@-$(d)) --allow-invalid --out $(REPORT)-$@

bench-storage: setup ## Readers alone: warm, cold, and larger than the page cache (15 to 30 minutes)
	$(BIN)/storebench bench scenarios/storage.toml --out $(RUNS)/$(NOW)-storage
	$(BIN)/storebench report $(RUNS)/$(NOW)-storage --allow-invalid --out $(REPORT)-storage

bench-roofline: setup ## The storage roofline: which accelerators each store feeds, and the error of its model
	$(BIN)/storebench bench scenarios/roofline.toml --out $(RUNS)/$(NOW)-roofline
	$(BIN)/storebench report $(RUNS)/$(NOW)-roofline --allow-invalid --out $(REPORT)-roofline

bench-gpu: data ## The paper's networks and ResNet-50 on a GPU, from every backend, cold and in memory (about 13 minutes; CUDA)
	$(BIN)/storebench bench scenarios/gpu.toml --out $(RUNS)/$(NOW)-gpu
	$(BIN)/storebench report $(RUNS)/$(NOW)-gpu --allow-invalid --out $(REPORT)-gpu

bench-codecs: setup ## Every container with every codec: the cost of each of the two
	$(BIN)/storebench bench scenarios/codecs.toml --out $(RUNS)/$(NOW)-codecs
	$(BIN)/storebench report $(RUNS)/$(NOW)-codecs --allow-invalid --out $(REPORT)-codecs

bench-decoders: setup ## How much of the gap between JPEG and raw pixels a faster decoder closes (about 6 minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[simplejpeg,opencv]'
	$(BIN)/storebench bench scenarios/decoders.toml --out $(RUNS)/$(NOW)-decoders
	$(BIN)/storebench report $(RUNS)/$(NOW)-decoders --allow-invalid --out $(REPORT)-decoders

bench-workers: setup ## Throughput by the number of worker processes
	$(BIN)/storebench bench scenarios/workers.toml --out $(RUNS)/$(NOW)-workers
	$(BIN)/storebench report $(RUNS)/$(NOW)-workers --allow-invalid --out $(REPORT)-workers

bench-loaders: setup ## Processes, threads or a ring: the cost of the handoff
	$(BIN)/storebench bench scenarios/loaders.toml --out $(RUNS)/$(NOW)-loaders
	$(BIN)/storebench report $(RUNS)/$(NOW)-loaders --allow-invalid --out $(REPORT)-loaders

bench-ranks: setup ## Jobs of 1, 2 and 4 ranks, and what exchanging gradients costs them (at most 15 minutes on 2 cores)
	$(BIN)/storebench bench scenarios/ranks.toml --out $(RUNS)/$(NOW)-ranks
	$(BIN)/storebench bench scenarios/overlap.toml --out $(RUNS)/$(NOW)-overlap
	$(BIN)/storebench report $(RUNS)/$(NOW)-ranks $(RUNS)/$(NOW)-overlap --allow-invalid --out $(REPORT)-ranks

bench-lmdbio: setup ## LMDBIO's ladder: the gain of each optimisation
	$(BIN)/storebench bench scenarios/lmdbio.toml --out $(RUNS)/$(NOW)-lmdbio
	$(BIN)/storebench report $(RUNS)/$(NOW)-lmdbio --allow-invalid --out $(REPORT)-lmdbio

bench-lmdbio-ranks: setup ## LMDBIO's ladder in jobs of 1 to 8 ranks that train (about an hour on 2 cores)
	$(BIN)/storebench bench scenarios/lmdbio-ranks.toml --out $(RUNS)/$(NOW)-lmdbio-ranks
	$(BIN)/storebench report $(RUNS)/$(NOW)-lmdbio-ranks --allow-invalid --out $(REPORT)-lmdbio-ranks

bench-lmdbio-limited: setup ## One reader per node or one per rank, from a store larger than memory (about seven minutes, as root)
	$(BIN)/storebench bench scenarios/lmdbio-limited.toml --out $(RUNS)/$(NOW)-lmdbio-limited
	$(BIN)/storebench report $(RUNS)/$(NOW)-lmdbio-limited --allow-invalid --out $(REPORT)-lmdbio-limited

scaling-io: setup ## A model of LMDBIO's ladder on many machines, compared with the newest bench-lmdbio
	$(BIN)/python -m benchmarks.scaling_io $(lastword $(sort $(wildcard $(RUNS)/*-lmdbio)))

bench-readers: setup ## Each reader's shuffled warm rate as a share of the gather rate of the same run
	$(BIN)/python -m benchmarks.readers --stores $(STORES)

bench-direct: setup ## The direct readers compared with the libraries and the device, cold and warm
	$(BIN)/python -m benchmarks.direct --stores $(STORES)

bench-window: setup ## How far a reader should ask ahead where memory is limited (root)
	$(BIN)/storebench bench scenarios/window.toml --out $(RUNS)/$(NOW)-window
	$(BIN)/storebench report $(RUNS)/$(NOW)-window --allow-invalid --out $(REPORT)-window

bench-handoff: setup ## Drain rates of the loaders compared with no workers
	$(BIN)/python -m benchmarks.loaders

bench-overhead: setup ## The cost of timing every step, and of keeping samples for the proof
	$(BIN)/python -m benchmarks.overhead

bench-nodes: setup ## Emulated nodes: does a cold cell fail if one node is not cold? (a minute; root)
	$(BIN)/python -m benchmarks.nodes caches

bench-sampling: setup ## The cost of sampling residency: cold epochs with and without it, interleaved
	$(BIN)/python -m benchmarks.sampler

bench-counters: setup ## Are the counters right? Cold LMDB compared with known values and with the device's own counter
	$(BIN)/python -m benchmarks.counters --stores $(STORES)

bench-prep: setup ## Crop and mirror, and the time of a warm batch by part, for every backend and two sizes of images
	$(BIN)/python -m benchmarks.prep --stores $(STORES)

# Five fresh processes: how processes differ from each other is most of a benchmark's noise.
bench-ci: setup ## Five timed sessions of the pytest-benchmark suite; 'pytest-benchmark compare' shows them
	rm -rf $(RUNS)/ci && mkdir -p $(RUNS)/ci
	for session in 1 2 3 4 5; do \
	  $(BIN)/python -m pytest benchmarks/suite -q --benchmark-enable --benchmark-only --benchmark-disable-gc \
	    --benchmark-json=$(RUNS)/ci/session-$$session.json > $(RUNS)/ci/session-$$session.log || { cat $(RUNS)/ci/session-$$session.log; exit 5; }; \
	done

reference: data ## Measure results/reference again: the answer, the paper's matrix, and more (about three hours and a half)
	rm -rf $(addprefix results/reference/,answer roofline storage paper codecs ranks overlap datastore ltfb lmdbio-ranks lmdbio-limited)
	$(BIN)/storebench bench scenarios/answer.toml --out results/reference/answer
	$(BIN)/storebench bench scenarios/roofline.toml --out results/reference/roofline
	$(BIN)/storebench bench scenarios/storage.toml --out results/reference/storage
	$(BIN)/storebench bench scenarios/paper.toml --out results/reference/paper
	$(BIN)/storebench bench scenarios/codecs.toml --out results/reference/codecs
	$(BIN)/storebench bench scenarios/ranks.toml --out results/reference/ranks
	$(BIN)/storebench bench scenarios/datastore.toml --out results/reference/datastore
	$(BIN)/storebench bench scenarios/overlap.toml --out results/reference/overlap
	$(BIN)/storebench bench scenarios/ltfb.toml --out results/reference/ltfb
	$(BIN)/storebench bench scenarios/lmdbio-ranks.toml --out results/reference/lmdbio-ranks
	$(BIN)/storebench bench scenarios/lmdbio-limited.toml --out results/reference/lmdbio-limited

reference-gpu: data ## Measure results/reference/gpu and gpu-small again (about nine minutes; CUDA)
	rm -rf results/reference/gpu results/reference/gpu-small
	$(BIN)/storebench bench scenarios/gpu.toml --rounds 3 --only imagenet --out results/reference/gpu
	$(BIN)/storebench bench scenarios/gpu.toml --rounds 3 --only cifar10 --only mnist --out results/reference/gpu-small

figures: setup ## Draw the plots of the README and of docs/ from results/reference
	$(BIN)/python -m tests.docs.figures

docs: setup ## Generate the pages that are made from the code
	$(BIN)/python -m tests.docs.generate

.PHONY: notebooks
notebooks: setup ## Execute the notebooks in place on results/reference; their outputs are committed
	$(BIN)/python -m tests.docs.notebooks

report: setup ## Report on the newest run of the paper's matrix
	$(BIN)/storebench report $(lastword $(sort $(wildcard $(RUNS)/*-paper))) --out $(REPORT)

# One process more than two cores: tests wait for disks, for processes that end, and for their own sleeps.
test: setup ## Run the test suite, in three processes
	$(BIN)/python -m pytest -q -n 3

test-full: setup ## The same with the tests that take minutes
	$(BIN)/python -m pytest -q -n 3 --full

test-faults: setup ## Kill, fill the disk, break I/O or interrupt at single file operations, and check the remains (half an hour)
	FAULTS_ALL=1 $(BIN)/python -m pytest -q tests/faults

lint: setup ## ruff, mypy --strict and import-linter
	$(BIN)/ruff format --check storebench tests benchmarks
	$(BIN)/ruff check storebench tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## Remove stores, runs and reports (never data, results or the virtual environment)
	rm -rf $(STORES) $(RUNS) $(REPORT) $(REPORT)-*

distclean: clean ## Remove the virtual environment as well
	rm -rf $(VENV)
