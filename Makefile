# Two commands on a fresh machine with Python 3.11+ and make:
#   make demo   shows the product at work (make demo ONCE=1 ends after one round)
#   make test   sets up and runs everything
# make test PYTHON=python3.13 uses another interpreter, in an environment of its own (.venv-3.13).
PYTHON ?= python3
ifeq ($(PYTHON),python3)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# Tests start hundreds of processes; without bytecode each of them would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
COMPILE := $(BIN)/python -m compileall -q src
BENCH_STAMP := $(VENV)/.bench

.DEFAULT_GOAL := help
.PHONY: help demo test fast docs interop soak console-test fuzz peers check format proto bench wheel clean

help:
	@echo "make demo    run the demo: three agents plan a trip, one is killed, and a fourth is paid (ONCE=1 ends after one round)"
	@echo "make test    set up, run all checks and tests"
	@echo "make fast    run the quick tests of the units, the bindings and the docs, in about a minute"
	@echo "make docs    check code blocks, links and tables in the docs"
	@echo "make interop test with every foreign client, server and framework; writes docs/interop.md and a table in docs/bridges.md"
	@echo "make soak    run crash, network and attack tests for more than an hour (SCALE=0.1 for less)"
	@echo "make console-test  test the console in a browser at length, with a million tasks; installs chromium if there is none"
	@echo "make fuzz    send invalid input (default: 60 s; SECONDS=600 for longer, FUZZ_SEED=… to repeat)"
	@echo "make peers   install the foreign clients and servers for the tests, in .peers"
	@echo "make check   check format, lint, types, import rules and the table of clauses"
	@echo "make format  format the code"
	@echo "make proto   recompile the .proto files"
	@echo "make bench   compare dragoman with its peers: more than an hour (ARGS=--quick for less)"
	@echo "make wheel   build the wheel and the sdist"
	@echo "make clean   remove generated files"

demo: $(STAMP)
	@$(BIN)/dragoman demo $(if $(ONCE),--once)

test: $(STAMP)
	@$(COMPILE)
	@$(MAKE) --no-print-directory -j2 check peers
	@# tests wait for longer than they compute: five processes keep two cores busy
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder -rs --durations=30

fast: $(STAMP)
	@$(COMPILE)
	TESTS_FAST=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" tests/unit tests/contract tests/docs

docs: $(STAMP)
	$(BIN)/python -m pytest -rs tests/docs tests/examples

interop: $(STAMP)
	INTEROP=full $(BIN)/python -m pytest -p tests.interop.report -p tests.products.bridges.features -n 2 --dist loadfile -rs tests/interop tests/products

soak: $(STAMP)
	CRASH_SOAK=$(or $(SCALE),1) $(BIN)/python -m pytest -n 2 --dist loadfile tests/contract tests/unit tests/client tests/faults/test_bytes.py
	CRASH_SOAK=$(or $(SCALE),1) $(BIN)/python -m pytest tests/faults/crash tests/faults/network tests/faults/cluster tests/security tests/products/orchestrator/test_killed.py tests/products/payments/killed tests/products/console/test_load.py tests/products/console/test_many_tasks.py tests/products/console/test_killed.py -x -s

console-test: $(STAMP)
	@$(COMPILE)
	@command -v chromium > /dev/null || $(BIN)/python -m playwright install chromium
	CONSOLE=full CONSOLE_CHROMIUM=$$(command -v chromium || $(BIN)/python -m tests.products.console.browser) $(BIN)/python -m pytest -rs tests/products/console

fuzz: $(STAMP)
	FUZZ_SECONDS=$(or $(SECONDS),60) $(BIN)/python -m pytest tests/security/fuzz -x -s

peers: $(STAMP)
	@$(BIN)/python -c 'from tests.interop.peers import environments; environments.install()'

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.spec.table --check

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(STAMP)
	$(BIN)/python -m tests.proto

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

wheel: $(STAMP)
	$(BIN)/python -m build

clean:
	rm -rf .venv .venv-* .peers dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis benchmarks/out src/*.egg-info
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dragoman needs Python 3.11 or newer; try make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (the first time this takes a minute) ..."
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --editable ".[serve,crypto,grpc,postgres,nats,redis,mcp,pay]" --group test --group check
	@touch $@

$(BENCH_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet --group bench
	@touch $@
