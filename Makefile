# partfile: `make demo` and `make test` need only Python 3.11+ and Java 17+ on the machine; everything else goes into .venv.
# `make test-all` also needs Maven, once, to fetch the servers of Hadoop and Kafka into ~/.cache/partfile,
# and Ceph's servers from Debian's packages; as root it installs them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
SPARK_CLASSES := $(VENV)/spark-classes.jsa
HADOOP_CLASSES := $(VENV)/hadoop-classes.jsa
# The interpreter that builds .venv; any other can be named: make setup PYTHON=/opt/python3.13/bin/python3
PYTHON ?= python3
ARGS ?=
# Processes that share the tests, file by file. Most of them wait for servers and for processes to die.
JOBS ?= 4

# Of the files of the demos: json or parquet.
FORMAT ?= json
# How the demos start their queries: sink.start, or plain writeStream.foreachBatch.
MODE ?= start
# Set, the demos send each row up to three times, and the sink is to write it once.
DEDUPLICATE ?=

# Java as PySpark finds it: JAVA_HOME first, then the PATH.
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)

export SPARK_LOCAL_IP := 127.0.0.1
# The same order of sets in every run of the same commit.
export PYTHONHASHSEED ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A PYTHONPATH of the shell's would be searched before .venv, here and in Spark's workers. Without bytecode on disk each
# of the many processes of the tests compiles all it imports, and pytest rewrites every test.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.installed-dev ## Build .venv with everything for development (fast when nothing changed)

.PHONY: demo
demo: java $(VENV)/.installed-demo ## Replay the flights of 2013 through three SIGKILLs and compare (under four minutes); FORMAT=parquet, MODE=plain, DEDUPLICATE=1
	@$(BIN)/python examples/flights.py --format=$(FORMAT) --mode=$(MODE) $(if $(DEDUPLICATE),--deduplicate) $(ARGS)

.PHONY: demo-hdfs
demo-hdfs: java setup ## The same on a real HDFS whose NameNode is killed too (under five minutes)
	@PYTHONPATH=tests $(BIN)/python examples/flights_hdfs.py --format=$(FORMAT) --mode=$(MODE) $(if $(DEDUPLICATE),--deduplicate) $(ARGS)

.PHONY: demo-s3
demo-s3: java setup ## The same on a real S3 server that is restarted too (under five minutes)
	@PYTHONPATH=tests $(BIN)/python examples/flights_s3.py --format=$(FORMAT) --mode=$(MODE) $(if $(DEDUPLICATE),--deduplicate) $(ARGS)

.PHONY: demo-pipeline
demo-pipeline: java setup ## The flights from a real Kafka without Spark: the job is killed three times, the broker once (two minutes)
	@PYTHONPATH=tests $(BIN)/python examples/flights_pipeline.py $(ARGS)

.PHONY: demo-stuck
demo-stuck: java setup ## Make a mess with real kills, and mend it with the command line (about a minute)
	@PYTHON=$(abspath $(BIN)/python) bash examples/stuck.sh

# The lanes: conftest.py's header says which one runs and with which seed, tests/support/repo/lanes.py what the quick one takes.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
QUICK := $(BIN)/python -c 'import sys; sys.path.insert(0, "tests"); from support.repo import lanes; print(lanes.QUICK)'

.PHONY: test
test: java setup $(SPARK_CLASSES) ## Run the quick tests: Python and Java suffice, a few minutes; ARGS="-k name" selects
	@$(PYTEST) --durations=15 --durations-min=10 -m "$$($(QUICK))" $(ARGS)

.PHONY: test-all
test-all: java setup $(SPARK_CLASSES) $(HADOOP_CLASSES) ## Run all tests, on real HDFS (Maven) and Ceph too, under half an hour; ARGS='-m "not hdfs"' leaves some out
	@$(PYTEST) --durations=25 --durations-min=10 $(ARGS)

.PHONY: test-hdfs
test-hdfs: java setup $(SPARK_CLASSES) $(HADOOP_CLASSES) ## Run the tests on a real HDFS alone (part of test-all; ARGS=--long: 20 kills)
	@$(PYTEST) -m hdfs $(ARGS)

.PHONY: test-s3
test-s3: java setup $(SPARK_CLASSES) ## Run the tests on real S3 servers alone (part of test-all; ARGS=--long: 23 kills)
	@$(BIN)/python -m pytest tests/s3 $(ARGS)

.PHONY: items
items: setup ## Print which items of the snapshot core's list the tests check
	@PYTHONPATH=tests $(BIN)/python -m support.repo.list_marks items

.PHONY: docs
docs: setup ## Make docs/CLI.md and the tables of docs/OPTIONS.md from the code
	@$(BIN)/python docs/tools/cli_reference.py > docs/CLI.md.new && mv docs/CLI.md.new docs/CLI.md
	@$(BIN)/python docs/tools/options_reference.py > docs/OPTIONS.md.new && mv docs/OPTIONS.md.new docs/OPTIONS.md

.PHONY: site
site: setup ## Build the site of the documentation in build/site
	@$(BIN)/python -m mkdocs build --quiet
	@echo "open build/site/index.html"

.PHONY: runbook
runbook: java setup ## Make the outputs in docs/RUNBOOK.md by causing each failure (about two minutes)
	@PYTHONPATH=tests $(BIN)/python examples/runbook.py $(ARGS)

.PHONY: crash
crash: setup ## Kill everything everywhere, twice, on every store (many hours; with a new seed, or SEED=N; ARGS="-k name" selects)
	@HYPOTHESIS_PROFILE=thorough $(PYTEST) -v -o timeout=3600 --long --randomly-seed=$(or $(SEED),$$($(BIN)/python -c 'import secrets; print(secrets.randbits(32))')) \
	  tests/faults tests/pipeline/test_schedules.py tests/s3/test_kills.py tests/hdfs/test_kills_truncate.py \
	  tests/hdfs/test_kills_rewrite.py tests/hdfs/test_kills_valid_length.py $(ARGS)

.PHONY: mutants
mutants: setup ## Show that the tests kill each deliberate bug of tests/mutants (ARGS=word: some of them)
	@$(BIN)/python tests/mutants/run.py $(ARGS)

.PHONY: faults
faults: setup ## Print each row of docs/FAULTS.md: which tests hold it, or why it is not ours
	@PYTHONPATH=tests $(BIN)/python -m support.repo.list_marks faults

.PHONY: check
check: setup ## Lint (bandit's rules too), format check, strict types, known vulnerabilities of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p partfile
	$(BIN)/mypy tests examples benchmarks
	@$(BIN)/python tests/support/repo/dependency_audit.py

.PHONY: audit
audit: setup ## Look for known vulnerabilities of dependencies, and fail where no database answers
	@$(BIN)/python tests/support/repo/dependency_audit.py --strict

.PHONY: format
format: setup ## Let ruff format the code and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: java $(VENV)/.installed-bench ## Measure against Spark, Delta and Flink and write docs/BENCHMARKS.md (about 45 minutes; ARGS=--quick: ten; ARGS=--list)
	@$(BIN)/python -u benchmarks/run.py $(ARGS)

.PHONY: clean
clean: ## Remove what builds, tests, the demo and the benchmarks leave behind (.venv stays)
	rm -rf build dist artifacts spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# One virtual environment; the stamps say which extra it has, and the setup.cfg it was made from.
$(VENV)/.installed-dev: setup.cfg pyproject.toml | $(VENV)/.python
	@echo "Installing partfile and what its development needs into $(VENV) (the first time: a minute or two)"
	@$(BIN)/python -m pip install -qq --editable '.[dev]'
	@# pytest rewrites the asserts of every test: here once, not in each process of the first run.
	@# That run tells of tests that cannot be collected.
	@$(BIN)/python -m pytest -qq --collect-only > /dev/null || true
	@touch $(VENV)/.installed-demo $@

$(VENV)/.installed-bench: setup.cfg pyproject.toml | $(VENV)/.python
	@echo "Installing partfile and what its benchmarks need into $(VENV) (the first time: a minute or two)"
	@$(BIN)/python -m pip install -qq --editable '.[bench]'
	@touch $(VENV)/.installed-dev $(VENV)/.installed-demo $@

$(VENV)/.installed-demo: setup.cfg pyproject.toml | $(VENV)/.python
	@echo "Installing partfile and what the demo needs into $(VENV) (the first time: a minute or two)"
	@$(BIN)/python -m pip install -qq --editable '.[demo]'
	@touch $@

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "partfile needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Install one (Debian: apt-get install python3 python3-venv) or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu it needs the package python3-venv." >&2; exit 1; }
	@touch $@

# What every Spark of the tests starts with; it takes a quarter of a minute to make, and saves half of each start.
$(SPARK_CLASSES): $(VENV)/.installed-dev
	@PYTHONPATH=tests $(BIN)/python -m support.spark.classes 2> $@.log || { cat $@.log >&2; exit 1; }
	@rm $@.log

# The same for Hadoop's servers; empty, and harmless, where there is no Maven.
$(HADOOP_CLASSES): $(VENV)/.installed-dev
	@PYTHONPATH=tests $(BIN)/python -m support.hdfs.classes 2> $@.log || { cat $@.log >&2; exit 1; }
	@rm $@.log

.PHONY: java
java:
	@version=$$("$(JAVA)" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 || true); \
	if [[ "$${version:-0}" -lt 17 ]]; then \
	  found=$$([[ -n "$$version" ]] && echo "older" || echo "missing or broken"); \
	  echo "Spark 4 needs Java 17 or newer, but '$(JAVA)' is $$found." >&2; \
	  echo "Install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to it." >&2; \
	  exit 1; \
	fi
