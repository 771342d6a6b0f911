# `make demo` and `make test` are all that a fresh clone needs; both set up what they use.
# The steps behind them leave stamps in .venv/.stamps, so a second run installs nothing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
COMPAT := $(VENV)/compat
# Building Spark's wheel takes 1.5 GiB for a while: in here, where the disk was checked, not in a small /tmp.
PIP := TMPDIR=$(CURDIR)/$(VENV)/.tmp $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
# Images often set it. Each of the hundreds of processes of a run would compile its modules again.
export PYTHONDONTWRITEBYTECODE :=
# Extras stay in the names: pip 23.0, which Python 3.11 brings, takes `coverage[toml]` of a dependency for unpinned as
# soon as there is a newer coverage than the `coverage==` of the lock file.
COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --no-strip-extras --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --build-deps-for=editable

# Set PYTHON to choose another interpreter; otherwise the fastest on PATH that is new enough (.ci/preflight).
PYTHON ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
MATRIX_ARGS ?=
ENGINES ?= podman docker
CONTAINERS_ARGS ?=
TEST_JOBS ?= 3
# Most of what is too long for the default suite runs clusters: as many at a time as there are cores.
CI_JOBS ?= 2
BENCH_ARGS ?=
NIGHT_ARGS ?=
VERSION ?=
RELEASE_ARGS ?=

.PHONY: help setup setup-dev demo test test-ci test-pythons test-all coverage test-compat test-browser compat-matrix containers check lint dead-code types layers arch shape sim-night bench bench-compare bench-groups bench-group-kills bench-instructions bench-neighbour bench-peers bench-wake stories changelog hooks lock docs release clean distclean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMPS)/kernel  ## .venv with the runtime packages (base.lock) and this tree, editable, with its native kernel
setup-dev: $(STAMPS)/dev  ## the same, with test tools and Spark (dev.lock)

demo: $(STAMPS)/kernel  ## three nodes, a killed leader, every message accounted for (DEMO_ARGS=...)
	@$(BIN)/raftmq demo $(DEMO_ARGS)

test: $(STAMPS)/dev  ## the default suite, a file at a time in each of TEST_JOBS processes (PYTEST_ARGS=...)
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile $(PYTEST_ARGS)

test-ci: $(STAMPS)/dev  ## the tests that are too long for the default suite; .ci/run runs both (PYTEST_ARGS=...)
	@$(BIN)/python -m pytest -n $(CI_JOBS) --dist loadfile -m "ci and not slow and not alone" $(PYTEST_ARGS) || test $$? = 5
	@$(BIN)/python -m pytest -m "ci and not slow and alone" $(PYTEST_ARGS) || test $$? = 5  # 5: PYTEST_ARGS has none

test-all: $(STAMPS)/dev  ## both; fails if a test was skipped for want of a tool (docs/testing.md has the list)
	@$(BIN)/python -m pytest --complete -n $(TEST_JOBS) --dist loadfile -m "not slow and not compat and not browser" $(PYTEST_ARGS)

test-pythons: $(STAMPS)/dev  ## the default suite, without Spark, on CPython 3.12 and 3.13, where they are on PATH
	@$(BIN)/python .ci/other_pythons.py $(PYTEST_ARGS)

coverage: $(STAMPS)/dev  ## the default suite once more, with lines and branches that it never reached (PYTEST_ARGS=...)
	@mkdir -p .coverage
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --cov --cov-report=term --cov-report=html $(PYTEST_ARGS)

test-compat: $(STAMPS)/compat  ## unmodified RocketMQ clients against a live cluster
	@$(BIN)/python -m pytest -m compat -o faulthandler_timeout=300 tests/compat $(PYTEST_ARGS)

test-browser: $(STAMPS)/dev  ## the dashboard in headless Chromium beside a live cluster (apt-get install chromium)
	@$(BIN)/python -m pytest --complete -m "browser and not slow" tests/browser $(PYTEST_ARGS)

compat-matrix: $(STAMPS)/compat  ## each client times each feature, calm and while leaders are killed; an hour (MATRIX_ARGS=...)
	@$(BIN)/python -m tests.compat.matrix $(MATRIX_ARGS)

containers: $(STAMPS)/dev  ## docker-compose.yml on podman and on dockerd, as root; the first run takes long (ENGINES=podman, CONTAINERS_ARGS=...)
	@for engine in $(ENGINES); do $(BIN)/python -m tests.containers $$engine $(CONTAINERS_ARGS); done

check: lint types layers dead-code arch  ## everything CI runs before the tests

lint: $(STAMPS)/dev  ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run .venv/bin/ruff format" >&2; exit 1; }

types: $(STAMPS)/dev  ## mypy --strict, the tests included
	@$(BIN)/mypy

layers: $(STAMPS)/dev  ## who may import whom (import-linter)
	@$(BIN)/lint-imports

dead-code: $(STAMPS)/dev  ## names that nothing uses (vulture)
	@$(BIN)/vulture || { echo "remove them, or write into .ci/used_elsewhere.py who uses them" >&2; exit 1; }

arch: $(STAMPS)/dev  ## the fast tests of tests/architecture
	@$(BIN)/python -m pytest -q tests/architecture

shape: $(STAMPS)/dev  ## longest files and functions, most imported modules, full folders, floors: advice, nothing fails
	@$(BIN)/python .ci/shape.py

sim-night: $(STAMPS)/kernel  ## a night: wide search, seeded bugs, chaos, each scenario at full scale; seeds from the commit (NIGHT_ARGS=...)
	@$(BIN)/python -m jepsen_like.night $(NIGHT_ARGS)

bench: $(STAMPS)/kernel  ## throughput and latency of three local nodes (JSON=1 for JSON only)
	@JSON=$(JSON) $(BIN)/python bench/bench_cluster.py $(BENCH_ARGS)

bench-compare: $(STAMPS)/kernel  ## the same on commit REV and on this tree, in turns (ROUNDS=5, JSON=1)
	@REV=$(REV) ROUNDS=$(ROUNDS) JSON=$(JSON) $(BIN)/python bench/bench_compare.py

bench-groups: $(STAMPS)/kernel  ## CPU per message and per busiest node with one, two and four groups of brokers (ROUNDS=3, SECONDS=6, JSON=1)
	@ROUNDS=$(ROUNDS) SECONDS=$(SECONDS) JSON=$(JSON) $(BIN)/python bench/bench_groups.py

bench-group-kills: $(STAMPS)/kernel  ## what other groups of brokers notice while one has no leader (BROKER_GROUPS=2, ROUNDS=3, SECONDS=10, RATE_MAX=2000, JSON=1)
	@BROKER_GROUPS=$(BROKER_GROUPS) ROUNDS=$(ROUNDS) SECONDS=$(SECONDS) RATE_MAX=$(RATE_MAX) JSON=$(JSON) $(BIN)/python bench/bench_group_kills.py

bench-instructions: $(STAMPS)/kernel  ## instructions per message, here and where this branch began (BASE=..., JSON=1); needs valgrind
	@BASE=$(BASE) JSON=$(JSON) $(BIN)/python bench/bench_instructions.py

bench-wake: $(STAMPS)/kernel  ## calls, switches and CPU per message at 1 in flight, and with many connections (ROUNDS=3, JSON=1)
	@ROUNDS=$(ROUNDS) JSON=$(JSON) $(BIN)/python bench/bench_wake.py

bench-neighbour: $(STAMPS)/dev  ## users beside a neighbour who sends as much as the nodes take (ROUNDS=3, SECONDS=12, JSON=1); with Java and Maven
	@ROUNDS=$(ROUNDS) SECONDS=$(SECONDS) JSON=$(JSON) $(BIN)/python bench/bench_neighbour.py

bench-peers: $(STAMPS)/dev  ## RaftMQ beside DLedger, etcd and NATS in alternating rounds, closed and open loop; fetches them (ROUNDS=5, JSON=1, OUT=folder for plots)
	@SYSTEMS=$(SYSTEMS) ROUNDS=$(ROUNDS) JSON=$(JSON) OUT=$(OUT) $(BIN)/python -m bench.bench_peers

stories: $(STAMPS)/dev  ## the Raft stories; REWRITE=1 writes their printed outcomes anew
	@$(BIN)/python -m pytest -q tests/raftlog/core/test_raft_stories.py $(if $(REWRITE),--rewrite)

changelog: $(STAMPS)/dev  ## prints what changelog.d/ adds to the changelog; VERSION=1.2.3 moves it there
	@$(BIN)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version next)

hooks: $(STAMPS)/dev  ## git hooks: lint and layers before a commit, check before a push
	@$(BIN)/pre-commit install

release: $(STAMPS)/release  ## sdists and wheels of both distributions in dist/, the same wherever they are built (RELEASE_ARGS=...)
	@$(BIN)/python .ci/release.py $(RELEASE_ARGS)

lock: $(STAMPS)/dev  ## resolve the lock files again from pyproject.toml
	@$(COMPILE) --output-file requirements/base.lock pyproject.toml
	@$(COMPILE) --extra dev --extra spark --extra jre --extra tier --extra iceberg -c requirements/base.lock --output-file requirements/dev.lock pyproject.toml
	@$(COMPILE) --extra tier -c requirements/base.lock --output-file requirements/image.lock pyproject.toml
	@$(COMPILE) --extra spark --extra jre --extra tier -c requirements/base.lock -c requirements/dev.lock --output-file requirements/spark.lock pyproject.toml
	@$(subst --build-deps-for=editable,,$(COMPILE)) --output-file requirements/compat.lock requirements/compat.in
	@$(subst --build-deps-for=editable,,$(COMPILE)) --output-file requirements/release.lock requirements/release.in
	@$(subst --build-deps-for=editable,,$(COMPILE)) --output-file requirements/docs.lock requirements/docs.in
	@cd requirements/compat-js && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund

docs: $(STAMPS)/docs  ## the pages of docs/ as a site that needs no network: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet

clean:  ## what tools and builds left behind; keeps .venv and data directories
	@rm -rf build dist *.egg-info .mypy_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov
	@rm -f raftmq_wire/kernel/_native.*.so $(STAMPS)/kernel
	@find . \( -name __pycache__ -o -name .ruff_cache \) -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## clean, and .venv with it
	@rm -rf $(VENV)

# --- setting up ---------------------------------------------------------------------------------

$(STAMPS)/python:
	@sh .ci/preflight disk 1 base
	@python="$$(sh .ci/preflight which "$(PYTHON)")"; \
		sh .ci/preflight python "$$python"; \
		echo "setup: making $(VENV)" >&2; \
		"$$python" -m venv $(VENV)
	@mkdir -p $(STAMPS) $(VENV)/.tmp && touch $@

$(STAMPS)/base: requirements/base.lock | $(STAMPS)/python
	@echo "setup: installing the runtime packages (requirements/base.lock)" >&2
	@$(PIP) install --require-hashes -r requirements/base.lock
	@touch $@

# --no-build-isolation: setuptools comes from the lock file as well.
$(STAMPS)/package: pyproject.toml $(STAMPS)/base
	@RAFTMQ_WITHOUT_KERNEL=1 PYTHONWARNINGS=ignore $(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# Not by the step before: pip keeps to itself what was missing or failed. Here a changed kernel is built anew, too.
$(STAMPS)/kernel: setup.py raftmq_wire/kernel/_native.pyx $(STAMPS)/base | $(STAMPS)/package
	@PYTHONWARNINGS=ignore $(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# Not newer than the kernel: a change of that installs no packages.
$(STAMPS)/dev: requirements/dev.lock $(STAMPS)/package | $(STAMPS)/kernel
	@sh .ci/preflight disk 3 dev
	@echo "setup: installing test tools and Spark (requirements/dev.lock); the first time takes minutes" >&2
	@$(PIP) install --require-hashes --no-build-isolation --use-pep517 -r requirements/dev.lock
	@touch $@

# The tools of a release are not among those of development: they bring 60 packages.
$(STAMPS)/release: requirements/release.lock $(STAMPS)/package
	@echo "setup: installing the tools of a release (requirements/release.lock)" >&2
	@$(BIN)/python -m venv $(VENV)/release
	@$(VENV)/release/bin/python -m pip --disable-pip-version-check --no-input --quiet \
		install --require-hashes -r requirements/release.lock
	@touch $@

$(STAMPS)/docs: requirements/docs.lock $(STAMPS)/package
	@echo "setup: installing the tools of the site (requirements/docs.lock)" >&2
	@$(BIN)/python -m venv $(VENV)/docs
	@$(VENV)/docs/bin/python -m pip --disable-pip-version-check --no-input --quiet \
		install --require-hashes -r requirements/docs.lock
	@touch $@

# The foreign clients get environments of their own, .venv/compat/{cpp,js,java,go}: tests/compat runs them as processes.
# The Java client is built where Maven is, the Go client where go is; elsewhere their tests are skipped and say so.
COMPAT_JAVA := $(wildcard tests/compat/*/pom.xml tests/compat/java/src/main/java/*.java)
COMPAT_JAVA_VERSIONS := 5.3.3 5.5.0
COMPAT_TOOLS_VERSIONS := 4.9.8 5.5.0
COMPAT_JS := requirements/compat-js/package.json requirements/compat-js/package-lock.json
COMPAT_GO := $(wildcard tests/compat/go/* tests/compat/s3/*)
$(STAMPS)/compat: requirements/compat.lock $(COMPAT_JS) $(COMPAT_JAVA) $(COMPAT_GO) $(STAMPS)/dev
	@sh .ci/preflight npm
	@echo "setup: installing the foreign clients (requirements/compat.lock, requirements/compat-js)" >&2
	@$(BIN)/python -m venv $(COMPAT)/cpp
	@$(COMPAT)/cpp/bin/python -m pip --disable-pip-version-check --no-input --quiet \
		install --require-hashes -r requirements/compat.lock
	@sh .ci/preflight librocketmq $(COMPAT)/cpp/bin/python
	@mkdir -p $(COMPAT)/js && cp $(COMPAT_JS) $(COMPAT)/js/
	@cd $(COMPAT)/js && npm ci --no-audit --no-fund --loglevel=error >&2
	@if command -v mvn >/dev/null; then \
		for version in $(COMPAT_JAVA_VERSIONS); do \
		mvn -q -B -f tests/compat/java/pom.xml -Drocketmq.version=$$version \
			-Dinto=$(CURDIR)/$(COMPAT)/java-$$version compile dependency:copy-dependencies >&2 \
		|| echo "setup: Maven did not build the Java client $$version; its tests are skipped" >&2; done; fi
	@if command -v mvn >/dev/null; then \
		for version in $(COMPAT_TOOLS_VERSIONS); do \
		mvn -q -B -f tests/compat/tools/pom.xml -Dtools=$$version \
			-Dinto=$(CURDIR)/$(COMPAT)/tools-$$version dependency:copy-dependencies >&2 \
		|| echo "setup: Maven did not fetch mqadmin $$version; its tests are skipped" >&2; done; fi
	@if command -v go >/dev/null; then \
		cd tests/compat/go && go build -o $(CURDIR)/$(COMPAT)/go/matrix . >&2 \
		|| echo "setup: the Go client was not built; its cells of the matrix are skipped" >&2; fi
	@if command -v go >/dev/null; then \
		cd tests/compat/s3 && go build -o $(CURDIR)/$(COMPAT)/go/versitygw github.com/versity/versitygw/cmd/versitygw >&2 \
		|| echo "setup: the S3 server versitygw was not built; its tests are skipped" >&2; fi
	@touch $@
