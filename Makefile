# All developer commands. `make test` and `make demo` run `make setup` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
CLASSES := $(VENV)/.spark-classes-archived
PYTEST := $(BIN)/python -m pytest
# More workers than the two cores of a small machine, because many tests wait for other processes.
# tests/conftest.py decides which tests share a worker, and their order.
GROUPED := --dist loadgroup --no-loadscope-reorder
WORKERS := -n 4 $(GROUPED)
# Every worker imports every file that it is given, so `make test` gives only those it needs.
SMOKE = $(shell grep -rl --include="test_*.py" "mark.smoke" tests)
JAVA = $(shell grep -rl --include="test_*.py" 'xdist_group("jvm")' tests)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without cached bytecode, every worker rewrites every test module, and every command that a test
# starts compiles the whole package.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-all lint types contracts check crash corrupt fuzz soak attack bench bench-kafka bench-spark bench-streams bench-security bench-console bench-pytest screenshots docs packages grpc peers clean

help:
	@echo "make setup   create $(VENV) with strandlog and everything its tests need"
	@echo "make demo    replay a year of flights through a broker and a Spark pipeline"
	@echo "make test    run the unit and server tests and a sample of the other tiers (minutes)"
	@echo "make test-all  run all tests, including other clients, browser, Spark, kill loops, crash points"
	@echo "make check   run lint, types, import contracts, test-all; CI: make check TESTS='not long'"
	@echo "make crash   cut the power of a simulated disk at 13,000 or more points"
	@echo "make corrupt damage files of every kind, 1,000 times, and check what can still be read"
	@echo "make fuzz    send random and damaged requests to a broker for some minutes"
	@echo "make soak    kill the broker and its clients, 50 times each, and check every record"
	@echo "make attack  run hostile clients against a broker; print stalls, memory and SIGTERM time"
	@echo "make bench   measure this machine, as a table and as JSON (only Spark: make bench-spark)"
	@echo "make bench-kafka  measure beside Apache Kafka, and update docs/benchmarks.md (needs make peers)"
	@echo "make bench-streams  measure beside Redis Streams and NATS JetStream, where they are installed"
	@echo "make bench-security  measure the cost of TLS, SASL and ACLs on produce and fetch"
	@echo "make bench-console  measure the cost of an open console (needs Chromium)"
	@echo "make bench-pytest   measure the pytest plugin in a project of its own (needs the registry)"
	@echo "make screenshots    update the pictures in the console guide, from two minutes of traffic"
	@echo "make docs    build the documentation site into build/site; warnings are errors"
	@echo "make packages  build wheel and sdist, install them per extra in fresh environments"
	@echo "make grpc    regenerate the gRPC modules from proto/"
	@echo "make peers   fetch clients of other languages for tests/clients (needs npm, Java, Maven)"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/install_dev.py
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python tools/install_dev.py
	@touch $(STAMP)

demo: setup
	$(BIN)/python -m examples.demo $(ARGS)

test: setup
	HYPOTHESIS_PROFILE=quick $(PYTEST) $(WORKERS) -m "(unit or server or smoke) and not slow" tests/unit tests/server $(SMOKE)

# Spark gives a Python process ten seconds to connect. With more than one Java or browser per core, a
# slow machine exceeds that. TESTS limits what runs: CI runs `make check TESTS="not long"`.
SLOWEST := --durations=40
TESTS ?= unit or server or soak or clients or browser or spark
test-all: setup
	HYPOTHESIS_PROFILE=ci $(PYTEST) $(WORKERS) $(SLOWEST) -m "not java and not browser and ($(TESTS))" \
		--ignore tests/spark --ignore tests/browser
	HYPOTHESIS_PROFILE=ci $(PYTEST) -n 2 $(GROUPED) $(SLOWEST) -m "(java or browser) and ($(TESTS))" \
		tests/spark tests/browser $(JAVA)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	DENO_NO_UPDATE_CHECK=1 $(BIN)/deno fmt --check --quiet
	DENO_NO_UPDATE_CHECK=1 $(BIN)/deno lint --quiet

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

# mypy uses one core, so the archive for test-all is made at the same time.
check: setup
	$(MAKE) --jobs 2 --output-sync lint types contracts $(CLASSES)
	$(MAKE) test-all

# With the archive, Java starts in half of the time; without it, tests only take longer.
$(CLASSES): $(STAMP)
	@STRANDLOG_CACHE_DIR=$(VENV)/cache $(BIN)/strandlog pipeline prepare; touch $(CLASSES)

crash: setup
	$(BIN)/python -m tests.crash.enumerate_crashes --points 10000 --transaction-points 3000

corrupt: setup
	$(BIN)/python -m tests.corrupt $(ARGS)

fuzz: setup
	HYPOTHESIS_PROFILE=deep $(PYTEST) -o timeout=0 tests/server/kafka/test_fuzz.py tests/server/http/test_fuzz.py

soak: setup
	$(BIN)/python -m tests.soak.broker_kills --rounds 50
	$(BIN)/python -m tests.soak.transaction_kills --kills 50
	$(BIN)/python -m tests.soak.spark_kills --rounds 20
	$(BIN)/python -m tests.soak.table_kills --rounds 20
	$(BIN)/python -m tests.soak.table_kills --rounds 20 --typed
	$(BIN)/python -m tests.soak.kept_table_kills --rounds 20
	$(BIN)/python -m tests.soak.pipeline_kills --rounds 20

attack: setup
	$(BIN)/python -m tests.attack $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.spark --rounds 1

# Runs beside Apache Kafka if `make peers` has fetched it; writes a section of docs/benchmarks.md.
bench-kafka: setup
	$(BIN)/python -m benchmarks.kafka $(ARGS)

bench-spark: setup
	$(BIN)/python -m benchmarks.spark

bench-streams: setup
	$(BIN)/python -m benchmarks.streams

bench-security: setup
	$(BIN)/python -m benchmarks.security

bench-console: setup
	$(BIN)/python -m benchmarks.console

bench-pytest: setup
	$(BIN)/python -m benchmarks.pytest_plugin

screenshots: setup
	PICTURES=docs/images PICTURE_SECONDS=120 $(PYTEST) tests/browser/test_pictures.py

docs: setup
	@$(BIN)/python -c "import mkdocs, material, mkdocstrings" 2>/dev/null || $(BIN)/python tools/install_dev.py docs
	$(BIN)/python tools/build_docs.py

packages: setup
	$(BIN)/python tools/check_packages.py $(ARGS)

grpc: setup
	$(BIN)/python tools/gen_grpc.py

peers: setup
	$(BIN)/python tools/fetch_peers.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
