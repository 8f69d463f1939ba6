# What a developer and CI run. `make run` and `make test` do all the set-up themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MEMBERS := framework $(patsubst %/pyproject.toml,%,$(wildcard drivers/*/pyproject.toml frontends/*/pyproject.toml))
STAMP := $(VENV)/.set-up
MACHINE ?=
FRONTEND ?=

.PHONY: help setup run cluster test test-durable test-cluster bench-cluster test-hwlab lint types layers check wheels stranger bench fuzz mutants docs golden clean

help: ## these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: $(STAMP) ## the development environment, in .venv

$(STAMP): requirements-dev.txt $(addsuffix /pyproject.toml,$(MEMBERS))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(addprefix -e ./,$(MEMBERS))
	@touch $@

run: setup ## the agent on this machine (or MACHINE=tree), one claim to its CDI file and back (FRONTEND=deviceplugin); SCENARIO=release: a grant that ends
	@$(BIN)/python -m hardpoint.cli demo $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(FRONTEND),--frontend $(FRONTEND)) $(if $(MACHINE),--sysfs $(MACHINE),--fallback tests/data/machines/desktop.tar.gz)

test: setup ## every test that needs no root, hardware or cluster
	$(BIN)/python -m pytest -m "not (root or hwlab or cluster or gpu)" $(ARGS)

test-durable: setup ## every durable step of every run: killed, failing, rebooted, overlapped (hours)
	HARDPOINT_TEST_DURABLE=1 $(BIN)/python -m pytest -s -p no:randomly -m durable tests

cluster: setup ## a real Kubernetes node with the agent on it, until Ctrl-C (root; MACHINE=tree, NODES=2)
	@PYTHONPATH=tests $(BIN)/python -m cluster $(if $(MACHINE),--machine $(MACHINE)) $(if $(NODES),--nodes $(NODES))

test-cluster: setup ## the tests on a real Kubernetes node (root; KUBERNETES=1.34 for another version, TURN=today for CI's part)
	$(BIN)/python -m pytest -m cluster tests $(ARGS)

bench-cluster: setup ## figures on a real Kubernetes node, into build/bench-cluster.json (root, a quiet machine)
	@PYTHONPATH=tests $(BIN)/python -m cluster.bench

test-hwlab: setup ## the agent on a real kernel with emulated hardware (today's machines; PROFILE=desktop, PROFILE=all)
	$(BIN)/python -m pytest -m hwlab tests/hwlab $(ARGS)

lint: setup ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy $(foreach member,$(MEMBERS),$(member)/src) tests

layers: setup ## who may import whom
	$(BIN)/lint-imports --no-cache

check: lint types layers test ## all of the above

wheels: setup ## build every distribution into dist/
	rm -rf dist
	for member in $(MEMBERS); do $(BIN)/python -m build --quiet --no-isolation --wheel --outdir dist $$member || exit 1; done

stranger: wheels ## install one driver's wheel in a fresh environment and run its contract
	$(BIN)/python tests/repo/stranger.py dist

bench: setup ## timings and memory, with the bounds of the design
	@PYTHONPATH=tests $(BIN)/python -m bench

fuzz: setup ## look for inputs that break something (SECONDS=300 in all, TARGET=one of tests/fuzz, SEED=)
	@PYTHONPATH=tests nice $(BIN)/python -m fuzz $(if $(TARGET),--target $(TARGET)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

mutants: setup ## does a test notice wrong code? (MODULE=one of tests/mutation/modules.toml, SAMPLE=so many of each group, SEED=)
	@PYTHONPATH=tests nice $(BIN)/python -m mutation $(if $(MODULE),--module $(MODULE)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

docs: setup ## the reference pages, written from the code
	$(BIN)/python docs/build.py

golden: setup ## write again what `hardpoint devices` answers for each recorded machine; review by hand
	$(BIN)/python tests/golden/write.py

clean: ## remove what is built
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
