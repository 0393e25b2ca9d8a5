# All commands for developers and CI. Tools come from PATH if they fit; otherwise pinned versions are downloaded, built or installed into a
# cache (tests/tools/install).
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
export PATH := $(CURDIR)/target/tools:$(PATH)
# The target of cargo lambda, so that the tests do not build everything again.
export CARGO_BUILD_TARGET ?= $(shell rustc -vV | sed -n 's/^host: //p')

# The runner and the forwarder are not Lambda functions, but the same build makes them.
DEPLOYED := reconciler fetcher launcher recorder sweeper webhook runner forwarder
SEEDS ?= 10000
FROM ?= 0
SECONDS ?= 60
CASES ?= 100000
# The same cases in each run, so that a change fails for a reason of its own; `make properties` has new ones.
export PROPTEST_RNG_SEED ?= 1
# An error of a test names its cause; the stack of the test's thread after it would only push that out of CI's log.
export RUST_LIB_BACKTRACE ?= 0
# Cargo unifies the features of the packages that it builds together. So tests always choose all of them: with another choice cargo would
# build the dependencies again.
CARGO_TEST := cargo test --locked
# All tests of the crates but `plans`, which needs tools: files, and folders with a main.rs.
TESTS := $(foreach folder,functions infra shared,$(wildcard $(folder)/*/tests/*.rs $(folder)/*/tests/*/main.rs)) \
	$(wildcard tests/fuzz/tests/*.rs)
UNIT := $(CARGO_TEST) --lib --bins $(addprefix --test ,$(sort $(filter-out plans,$(notdir $(basename $(TESTS:/main.rs=.rs))))))
# The programs beside those that are deployed.
PROGRAMS := cargo build --quiet --locked $(patsubst %,--bin %,world kubectl-driftless doctor cost capacity prove)

.PHONY: help
help: ## This list.
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: demo
demo: build ## The whole way on this machine: kubectl apply to Ready, a push, an edit. Ctrl-C ends it.
	@cargo run --quiet --locked --bin demo

.PHONY: world
world: build ## The one-machine world in the foreground; `source target/world/env` in another shell.
	@cargo run --quiet --locked --bin world

.PHONY: test
test: ## Every lint, and all tests but arm64, cli, images-test and flux, which build much more. CI runs these beside it.
	@$(MAKE) --jobs=2 --output-sync lint tools
	@$(MAKE) unit e2e

# The tests below `aws::tests` start moto.
.PHONY: check
check: lint-rust ## Format, clippy, unit tests, simulation: no tools, no world.
	$(UNIT) --test sim --test model -- --skip aws::tests::

.PHONY: lint
lint: lint-infra lint-files lint-docs lint-rust ## Format, clippy, licences and bans, templates, scripts, Dockerfiles, workflows, docs.
	@tests/tools/install cargo-deny
	cargo deny --log-level error check bans licenses sources

.PHONY: lint-rust
lint-rust: ## Format and clippy.
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

.PHONY: advisories
advisories: ## Known vulnerabilities of the dependencies. Reads the network; CI runs it once a day.
	@tests/tools/install cargo-deny
	cargo deny --log-level error check advisories

.PHONY: lint-infra
lint-infra: ## The templates of AWS: cfn-lint, and checkov without a finding.
	@tests/tools/install python checkov
	cfn-lint infra/template.yaml infra/cluster.yaml
	checkov --config-file .checkov.yaml

.PHONY: lint-files
lint-files: ## Shell scripts, Dockerfiles, workflows.
	@tests/tools/install actionlint hadolint shellcheck
	shellcheck --external-sources $$(git grep --untracked -lE '^#!.*\b(ba)?sh\b' -- ':!*.md')
	hadolint $$(git ls-files -co --exclude-standard '*Dockerfile')
	actionlint

.PHONY: lint-docs
lint-docs: ## The language of the docs and of the comments in Rust, by the rules in .vale.
	@tests/tools/install vale
	vale --no-wrap --output line $$(git ls-files '*.md' '*.rs')

.PHONY: unit
unit: tools ## Tests that need no world: decisions, contracts, archives, generated files, the simulation, the template in moto.
	@tests/tools/install tmux
	@$(PROGRAMS)
	$(UNIT) --test plans --test sim --test model --test deployment --test docs --test argocd --test kube_state_metrics

# Only the command line may set TEST: an environment variable of that name would silently skip tests.
.PHONY: e2e
e2e: build ## Tests through the real processes; make e2e TEST=drift:: runs those of the e2e binary with that in their name.
ifeq ($(origin TEST),command line)
	$(CARGO_TEST) --test e2e -- --test-threads 200 $(TEST)
else
	@tests/tools/install helm
	$(CARGO_TEST) --test processes --test cluster
	$(CARGO_TEST) --test kubernetes -- --skip flux_
	@rm -f target/test-seconds
	$(CARGO_TEST) --test e2e -- --test-threads 200 --skip languages::
	@echo 'The ten slowest of them, in seconds:'; sort -rn target/test-seconds | head
	$(CARGO_TEST) --test privileges
	$(CARGO_TEST) --test prove
	$(COUNTED)
endif

# In a separate world, because they take long and compile concurrently; three at once, because each also waits. The output of passed
# tests is shown because it says which were skipped; libtest counts those as passed. A make variable LANGUAGES would override the
# environment variable that the tests read.
LANGUAGE_TESTS := $(CARGO_TEST) --test e2e -- --show-output --test-threads 3 languages::
COUNTED = @$(LANGUAGE_TESTS) >target/languages.log 2>&1; status=$$?; cat target/languages.log; \
	echo "languages: $$(grep -c '^skipped: ' target/languages.log) programs skipped"; exit $$status

.PHONY: languages
languages: build ## Programs in TypeScript, Python and Go through the real processes, where PATH has Pulumi's hosts for them.
	$(COUNTED)

.PHONY: sim
sim: ## The simulation: make sim SEEDS=10000; make sim FROM=7 SEEDS=1 replays seed 7; CALM=1, BREAK=RULE.
	cargo run --quiet --profile sim --locked --package driftless-tests --bin sim -- --from $(FROM) --seeds $(SEEDS) $(CALM:1=--calm) $(BREAK:%=--break %)

.PHONY: properties
properties: ## The properties of decisions, for new facts: make properties CASES=100000; SEED=7: the facts of that seed.
	PROPTEST_RNG_SEED=$(or $(SEED),$(shell date +%s)) PROPTEST_CASES=$(CASES) \
		cargo test --package driftless-core --locked --release --test properties

.PHONY: faults
faults: ## A short calm run of the simulation with every single fault, or with FAULT=KIND:NUMBER: what it comes to has to be the same.
	cargo run --quiet --profile sim --locked --package driftless-tests --bin sim -- --faults $(FAULT:%=--fault %)

.PHONY: model
model: ## The model check: the handlers in every order of their calls, for small bounds. MODEL='--case claim --crashes 1': other bounds.
	cargo run --quiet --release --locked --package driftless-tests --bin model -- $(MODEL)

# The crates that are deployed, and their libraries.
MUTATED ?= driftless-core driftless-api driftless-contract driftless-source driftless-aws driftless-kubernetes driftless-telemetry $(DEPLOYED)

.PHONY: mutants
mutants: ## Mutation testing: lists every change that no test of its crate notices. MUTATED=recorder: one crate. SHARD=0/4: a quarter.
	@tests/tools/install cargo-mutants
	cargo mutants $(MUTATED:%=--package %) --timeout 60 --output target $(SHARD:%=--shard %) -- --locked

.PHONY: fuzz
fuzz: ## Everything that reads the bytes of others, fuzzed: make fuzz SECONDS=60, for each target; TARGET=webhook: only that one.
	@tests/fuzz/run $(SECONDS) $(TARGET)

.PHONY: bench
bench: tools ## The figures of the README, of the release build.
	@tests/tools/install untar
	@cargo lambda build --quiet --release --locked $(DEPLOYED:%=--package %) --package empty
	@cargo build --quiet --locked --package driftless-cli
	@cargo run --quiet --locked --package driftless-tests --bin bench
	@dir=$$(mktemp -d -p /dev/shm) && cargo run --quiet --locked --release --package runner --example restore -- $$dir; rm -r $$dir

.PHONY: build
build: tools ## The binaries that are deployed, and those that test them.
	@echo 'build: what is deployed (cargo lambda build), then the world' >&2
	@cargo lambda build --compiler cargo --quiet --locked $(DEPLOYED:%=--package %)
	@$(PROGRAMS)

# infra/deploy copies images with crane or skopeo. Where crane cannot be installed, it names the ways out.
COPIER = @[ "$$COPY_IMAGES" = no ] || command -v crane >/dev/null || command -v skopeo >/dev/null || tests/tools/install registry || true

.PHONY: deploy
deploy: ## Installs on AWS, or upgrades: docs/aws.md says with which variables.
	@tests/tools/install python
	$(COPIER)
	@infra/deploy

.PHONY: undeploy
undeploy: ## Says what is on AWS; with CONFIRM=STACK removes it.
	@infra/undeploy

.PHONY: doctor
doctor: ## Checks a live installation: make doctor STACK=driftless BACKEND_URL=s3://…, or PKO's objects: make doctor MIGRATE=1
	@cargo run --quiet --locked --package driftless-doctor --bin doctor

.PHONY: prove
prove: ## Deploys, asks what only AWS can answer, undeploys: make prove BUDGET_USD=5 PREFIX=driftless-proof (docs/prove.md)
	@tests/tools/install python
	$(COPIER)
	@cargo run --quiet --locked --package driftless-doctor --bin prove

.PHONY: cost
cost: ## What it costs a month, by network: make cost STACKS=100 RUNS_PER_DAY=50 MINUTES=3 IMAGE_MIB=300
	@cargo run --quiet --locked --package driftless-doctor --bin cost

.PHONY: capacity
capacity: ## What a load needs, and what limits it first: make capacity STACKS=1000 RUNS_PER_HOUR=100 CLUSTERS=1 (docs/scale.md)
	@cargo run --quiet --locked --package driftless-doctor --bin capacity

.PHONY: images
images: ## The images of the runner and the forwarder: make images REGISTRY=ghcr.io/you PUSH=1
	@tests/tools/install python
	@infra/images/build

.PHONY: flux
flux: build ## What is applied to a cluster, by Flux's own kustomize-controller.
	@tests/tools/install kustomize-controller helm
	$(CARGO_TEST) --test kubernetes flux_

.PHONY: images-test
images-test: tools ## The images, unoptimised: built, pushed to a registry of this machine, pulled, run.
	@tests/tools/install buildah
	$(CARGO_TEST) --test images

.PHONY: arm64
arm64: ## All that is deployed, built for arm64, unoptimised; one function answers in an emulator.
	@tests/tools/install python qemu
	@cargo lambda build --quiet --locked --arm64 --lambda-dir target/lambda-arm64 $(DEPLOYED:%=--package %)
	$(CARGO_TEST) --test arm64

.PHONY: cli
cli: ## Archives of kubectl-driftless for Linux, macOS and Windows, into target/dist: make cli PROFILE=dev
	@tests/tools/install zigbuild
	@infra/cli/dist

.PHONY: dist
dist: ## What a release has, into target/dist: make dist REGISTRY=ghcr.io/you PUSH=1
	@tests/tools/install python zigbuild
	@infra/dist $(filter-out runner forwarder,$(DEPLOYED))

.PHONY: crds
crds: ## Generates infra/kubernetes/crds from the types.
	cargo run --quiet --locked --bin crdgen -- infra/kubernetes/crds

.PHONY: messages
messages: ## Generates docs/messages.md from the reasons in the code.
	cargo run --quiet --locked --bin messages

.PHONY: pictures
pictures: build ## Writes docs/pictures: the demo, and the page of kubectl driftless ui in headless Chromium (CHROMIUM names it).
	@infra/cli/tests/pictures.py
	@tests/tools/record docs/pictures/demo.svg make demo

.PHONY: tools
tools:
	@tests/tools/install
