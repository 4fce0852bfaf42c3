# SPDX-License-Identifier: Apache-2.0
# Builds, tests and runs everything. `make help` lists the targets.

BUILD   := $(CURDIR)/build
VERSION ?= $(shell sed -n 's/^const Base = "\(.*\)"/\1/p' internal/version/version.go)

GO      ?= go
# go-nvml declares functions that NVIDIA has deprecated. nri-vgpu calls none of these functions, so
# the warnings are off.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations
LDFLAGS := -s -w -X github.com/nri-vgpu/nri-vgpu/internal/version.Version=$(VERSION)
# The flags apply everywhere, so that builds, vet and tests share compiled packages. With netgo and
# osusergo, the agent, which needs C, also shares packages with the programs that need no C. Without
# grpcnotrace, grpc imports html/template, for which the linker keeps every exported method: the
# agent's memory would grow by half.
export GOFLAGS := $(GOFLAGS) -trimpath -tags=grpcnotrace,netgo,osusergo
# Programs record no state of the clone. Otherwise, tags and files beside the sources, such as a key,
# would change a release.
GOBUILD := $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

# These packages test memory and time under load, and must run alone on the machine.
STRESS_PKGS  := ./test/storm ./test/vgpuctl ./test/programs
UNIT_PKGS    := $$($(GO) list ./... | grep -v -e '/test/cluster$$' -e /test/e2e -e /test/chaos -e /test/storm -e /test/vgpuctl -e /test/programs -e /test/volcano -e /test/scheduling)

# The Kubernetes components in test/cluster/components have the same flags, and tools/align keeps their
# versions equal, so that all these programs share compiled packages.
IN_SCHEDULER := CGO_ENABLED=0 GOWORK=off $(GO)
# nri-vgpu-scheduler reports the version of its kube-scheduler.
SCHEDULER_STAMP := -X k8s.io/component-base/version.gitVersion=$(shell sed -n 's/^	k8s.io\/kubernetes \(v[^ ]*\).*/\1/p' scheduler/go.mod)

C_ROOMS := include interposer gpusim test/workload cmd/vgpuctl/devices bench/overhead/calls
SCHEDULER_BUILD := $(IN_SCHEDULER) build -buildvcs=false -ldflags '$(LDFLAGS) $(SCHEDULER_STAMP)'

# STATIC lists the programs that need no C library.
STATIC := ./cmd/extended-resource-patcher ./cmd/vgpuctl ./cmd/nri-vgpu-guard ./cmd/nri-vgpu-view

.DEFAULT_GOAL := help

##@ Try

.PHONY: demo
demo: root image ## start a real node, install nri-vgpu on it and share its GPUs; DEMO_BINARIES=download
	$(BUILD)/bin/demo up

.PHONY: demo-down
demo-down: root ## remove everything that the demo created
	@if [ -x $(BUILD)/bin/demo ]; then $(BUILD)/bin/demo down; else $(GO) run ./test/demo down; fi

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' ' \
	  /^##@ / { printf "%s%s\n", (groups++ ? "\n" : ""), substr($$0, 5) } \
	  /^[a-z][a-z0-9-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build

.PHONY: build
build: c go ## build everything into build/

.PHONY: go
go:
	@mkdir -p $(BUILD)/bin
	$(GOBUILD) -o $(BUILD)/bin/ ./cmd/nri-vgpu
	CGO_ENABLED=0 $(GOBUILD) -o $(BUILD)/bin/ $(STATIC)
	ln -sf vgpuctl $(BUILD)/bin/kubectl-vgpu
	ln -sf vgpuctl $(BUILD)/bin/kubectl_complete-vgpu
	$(GOBUILD) -o $(BUILD)/bin/ ./test/cluster/cmd/localcluster ./test/demo

.PHONY: scheduler
scheduler: ## build nri-vgpu-scheduler, which is kube-scheduler with a plugin, and its image
	@mkdir -p $(BUILD)/bin
	cd scheduler && $(SCHEDULER_BUILD) -o $(BUILD)/bin/ ./cmd/nri-vgpu-scheduler
	$(GO) run ./deploy/image --scheduler --build $(BUILD) --version $(VERSION) --output $(BUILD)/image/nri-vgpu-scheduler.tar

.PHONY: c
c:
	@for room in $(C_ROOMS); do $(MAKE) --no-print-directory -C $$room BUILD=$(BUILD) all || exit 1; done

.PHONY: chart
chart: ## generate the one-file manifest and the other files that depend on chart and configuration
	$(GO) run ./deploy/render
	$(GO) test ./deploy/render -update

.PHONY: helm
helm:
	@$(GO) run ./deploy/render --helm >/dev/null

.PHONY: clean
clean: ## remove the build directory, but not the cache of Kubernetes' components
	rm -rf $(BUILD)

.PHONY: root
root:
	@[ "$$(id -u)" = 0 ] || { echo "this starts a Kubernetes node and needs root: run 'sudo env PATH=\"\$$PATH\" make $(MAKECMDGOALS)'" >&2; exit 1; }

##@ Test

.PHONY: test
test: unit stress e2e ## run all tests; needs root, because the tests start a real node

.PHONY: unit
unit: build helm clients arm64-static ## run the tests that need neither root nor a cluster
	$(GO) vet ./...
	@# Passed packages are cached, so the repetition runs only the failed packages. go vet has made the
	@# checks of go test, too.
	$(GO) test -vet=off -timeout 5m $(UNIT_PKGS) || { echo "repeating the failed packages" && $(GO) test -vet=off -timeout 5m $(UNIT_PKGS); }
	cd scheduler && $(IN_SCHEDULER) vet ./... && $(IN_SCHEDULER) test -vet=off ./...
	@for room in $(C_ROOMS) interposer/fuzz; do $(MAKE) --no-print-directory -C $$room BUILD=$(BUILD) test || exit 1; done

.PHONY: stress
stress: build ## test limits under load on simulated GPUs, including storms
	$(GO) test -count=1 -vet=off -timeout 15m -p 1 -parallel 12 $(STRESS_PKGS)

.PHONY: lint
lint: build ## check the style of Go, C and shell
	@tools/lint.sh

RANGE ?= origin/main..HEAD
.PHONY: lint-commits
lint-commits: ## check the subjects of the commits in RANGE=origin/main..HEAD
	@tools/commit-message.sh --range $(RANGE)

.PHONY: sanitize
sanitize: build ## run the C tests under Address-, UB- and ThreadSanitizer
	@for room in interposer gpusim cmd/vgpuctl/devices; do for s in asan tsan; do \
	  $(MAKE) --no-print-directory -C $$room BUILD=$(BUILD) test-$$s || exit 1; done; done

# EMULATED=1 omits tests of system calls that QEMU ignores.
ARM64 := CC=aarch64-linux-gnu-gcc LD=aarch64-linux-gnu-ld OBJCOPY=aarch64-linux-gnu-objcopy BUILD=$(BUILD)/arm64 EMULATED=1
.PHONY: arm64
arm64: arm64-build ## build for arm64, and run the interposer's unit tests by QEMU; runs every night
	tools/arm64.sh $(MAKE) --no-print-directory -C interposer $(ARM64) unit

.PHONY: arm64-build
arm64-build:
	@tools/arm64.sh true
	@for room in $(C_ROOMS); do $(MAKE) --no-print-directory -C $$room $(ARM64) all || exit 1; done
	@mkdir -p $(BUILD)/arm64/bin
	CGO_ENABLED=1 GOARCH=arm64 CC=aarch64-linux-gnu-gcc $(GOBUILD) -o $(BUILD)/arm64/bin/ ./cmd/nri-vgpu
	@$(MAKE) --no-print-directory arm64-static

.PHONY: arm64-static
arm64-static:
	CGO_ENABLED=0 GOARCH=arm64 $(GOBUILD) -o $(BUILD)/arm64/bin/ $(STATIC)

# CLIENTS are the builds of kubectl's plugin for systems other than Linux. Tests build each system once.
CLIENT := $(BUILD)/clients/vgpuctl-
CLIENTS := $(foreach system,darwin windows,$(foreach architecture,amd64 arm64,$(CLIENT)$(system)-$(architecture)))
.PHONY: clients $(CLIENTS)
clients: $(CLIENT)darwin-arm64 $(CLIENT)windows-amd64
$(CLIENTS): $(CLIENT)%:
	CGO_ENABLED=0 GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(GOBUILD) -o $@ ./cmd/vgpuctl

.PHONY: storm
storm: build ## load the memory limits for five minutes, and the pools for two; runs every night
	$(GO) test -count=1 -timeout 30m -v ./test/storm -storm.duration=5m
	$(GO) test -count=1 -timeout 30m -v ./test/storm -run 'TestStorm$$' -storm.duration=2m \
		-storm.ways=async,async-ptsz,pool,graph,capture

.PHONY: fuzz
fuzz: build ## fuzz each input that tenants can write for ten minutes; runs every night
	$(MAKE) --no-print-directory -C interposer/fuzz BUILD=$(BUILD) nightly
	$(GO) test -run '^$$' -fuzz FuzzReadUsage -fuzztime 10m ./pkg/limits
	$(GO) test -run '^$$' -fuzz 'FuzzRead$$' -fuzztime 10m ./pkg/limits
	$(GO) test -run '^$$' -fuzz FuzzExports -fuzztime 10m -fuzzminimizetime 10x ./internal/driverlib
	$(GO) test -run '^$$' -fuzz FuzzRewrite -fuzztime 10m -fuzzminimizetime 10x ./internal/driverlib
	$(GO) test -run '^$$' -fuzz FuzzBind -fuzztime 10m ./internal/kube/assign

.PHONY: mutate
mutate: build ## measure how many small code changes the unit tests detect; runs every night; ARGS="--packages=pkg/hook --all"
	$(GO) run ./tools/mutate $(ARGS)

# These set the duration of chaos in minutes, and the number of concurrent nodes.
MINUTES ?= 3
NODES   ?= 3
# HOSTILE sets the number of tenants that attack the node in chaos.
HOSTILE ?= 2

.PHONY: e2e
e2e: image scheduler root ## run the end-to-end tests on real local nodes, NODES=3 at a time
	NODES=$(NODES) CHAOS=$(MINUTES)m HOSTILE=$(HOSTILE) GO=$(GO) tools/e2e.sh

.PHONY: pictures
pictures: image root ## make the documents' pictures of the web page and of kubectl vgpu top
	VIEW_PICTURES=$(CURDIR)/docs/pictures $(GO) test -count=1 -v -run '^TestPage$$' ./test/e2e/view

.PHONY: e2e-matrix
e2e-matrix: image root ## run a smoke test on other runtimes and kubelets; ARGS=-matrix.only=1.7/1.34
	$(GO) test -count=1 -timeout 60m -v ./test/e2e/matrix -args -matrix.write $(ARGS)

.PHONY: e2e-helm
e2e-helm: image root ## install with Helm, upgrade from another commit under load, roll back, uninstall; PREVIOUS=HEAD~1
	$(GO) test -count=1 -timeout 30m -v ./test/e2e/helm -run '^TestHelm$$' -args -helm.more -helm.previous=$(PREVIOUS)

.PHONY: e2e-release
e2e-release: root release image ## push the release VERSION=0.1.0 to a local registry, and install the release from there
	$(GO) test -count=1 -timeout 20m -v ./test/e2e/release -args -release.dir=$(RELEASE) -release.version=$(VERSION)

.PHONY: e2e-privileges
e2e-privileges: build root ## test that each privilege of accounts and pods is needed
	$(GO) test -count=1 -timeout 20m -parallel 16 -v ./test/e2e/nodestatus -run '^TestEach(Right|Privilege)IsNeeded$$'

.PHONY: chaos
chaos: image root ## break components of a real local node for MINUTES=3, beside HOSTILE=2 hostile tenants, and check the promises
	$(GO) test -count=1 -timeout $$(($(MINUTES) * 2 + 15))m -v ./test/chaos -chaos.duration=$(MINUTES)m -chaos.hostile=$(HOSTILE) $(ARGS)

##@ Measure

.PHONY: bench
bench: build ## run the benchmarks
	$(GO) test -run '^$$' -bench . -benchmem $(UNIT_PKGS)

# All benchmarks get these options: the build directory, and the commit for the heading.
COMMIT := --commit "$$(git describe --always --dirty)"
BENCH  := --build $(BUILD) $(COMMIT)

.PHONY: bench-memory
bench-memory: build ## measure how exact memory limits are; LIB=path ENV="A=b" for another library, ARGS=--help
	@$(GO) build -o $(BUILD)/bench/ ./bench/memory
	@$(BUILD)/bench/memory $(BENCH) $(if $(LIB),--library "$(LIB)" --env "$(ENV)") $(ARGS)

.PHONY: bench-compute
bench-compute: build ## measure how exact compute limits are on each card, for 75 minutes; ARGS=--quick, --resume, --help
	@$(GO) build -o $(BUILD)/bench/ ./bench/compute
	@$(BUILD)/bench/compute $(BENCH) --output $(BUILD)/bench/compute.jsonl --tables $(BUILD)/bench/compute.md --charts $(BUILD)/bench $(ARGS)

.PHONY: bench-overhead
bench-overhead: build ## measure the interposer's cost compared with native calls; ARGS=--help
	@$(MAKE) --no-print-directory -C bench/overhead/calls BUILD=$(BUILD) all
	@$(GO) build -o $(BUILD)/bench/ ./bench/overhead
	@$(BUILD)/bench/overhead $(BENCH) $(ARGS)

.PHONY: bench-agent
bench-agent: build root ## measure the cost of agent and patcher on a node with 500 pods; ARGS=--help
	@$(GO) build -o $(BUILD)/bench/ ./bench/agent
	@$(BUILD)/bench/agent $(BENCH) $(ARGS)

.PHONY: bench-fleet
bench-fleet: ## simulate how a cluster of 300 nodes places pods, in each mode; TRACE=DIR, ARGS="--nodes 3000", --help
	@$(GO) build -o $(BUILD)/bench/ ./bench/fleet
	@$(BUILD)/bench/fleet $(COMMIT) --tables $(BUILD)/bench/fleet.md --figure $(BUILD)/bench/fleet.svg $(if $(TRACE),--trace "$(TRACE)") $(ARGS)

.PHONY: bench-fit
bench-fit: image root ## measure how long the Nodes of the mode fit lag behind their pods, on two real nodes; ARGS=--help
	@$(GO) build -o $(BUILD)/bench/fit ./bench/fit
	@$(BUILD)/bench/fit $(COMMIT) $(ARGS)

.PHONY: bench-scheduler
bench-scheduler: build scheduler root ## measure nri-vgpu-scheduler beside kube-scheduler with 5,000 nodes; ARGS=--help
	cd scheduler && $(IN_SCHEDULER) test -c -tags perf -o $(BUILD)/bench/scheduler-perf ./perf
	@$(GO) build -o $(BUILD)/bench/scheduler ./bench/scheduler
	@$(BUILD)/bench/scheduler $(BENCH) --perf $(BUILD)/bench/scheduler-perf $(ARGS)

.PHONY: bench-churn
bench-churn: build scheduler root ## count refusals and writes while pods start and end on kwok's nodes and leaders are killed; ARGS=--help
	@$(GO) build -o $(BUILD)/bench/scheduler ./bench/scheduler
	@$(BUILD)/bench/scheduler $(BENCH) --churn 10m $(ARGS)

.PHONY: e2e-flood
e2e-flood: image root ## measure how long pods take to start on a node full of pods, each with 64 GPU containers
	$(GO) test -count=1 -timeout 20m -v ./test/e2e/flood $(ARGS)

##@ Release

.PHONY: image
image: build ## make the OCI image build/image/nri-vgpu.tar, without a container engine
	$(GO) run ./deploy/image --build $(BUILD) --version $(VERSION) --output $(BUILD)/image/nri-vgpu.tar

# The date of the last commit keeps the pages of a commit equal.
.PHONY: man
man: ## write manual pages and shell completions into build/man and build/completions
	rm -rf $(BUILD)/man $(BUILD)/completions
	$(GO) run -ldflags '$(LDFLAGS)' ./tools/man --output $(BUILD) --date "$$(git log -1 --format=%ct 2>/dev/null || echo 0)"

RELEASE := $(BUILD)/release/$(VERSION)
WRITE_RELEASE := $(GO) run ./deploy/release --version "$(VERSION)" --key "$(RELEASE_KEY)"
RELEASE_IMAGE = $(GO) run ./deploy/image --build $(BUILD) --and $(BUILD)/arm64 --version $(VERSION) --revision "$$(git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null)"
# The files get their place at the end, so that an interrupted run leaves no release.
PARTIAL := $(RELEASE).partial
.PHONY: release
release: release-check build scheduler arm64-build man $(CLIENTS) ## write all files of a release into build/release/VERSION; RELEASE_KEY=private.pem
	cd scheduler && GOARCH=arm64 $(SCHEDULER_BUILD) -o $(BUILD)/arm64/bin/ ./cmd/nri-vgpu-scheduler
	rm -rf $(RELEASE) $(PARTIAL)
	$(RELEASE_IMAGE) --output $(PARTIAL)/nri-vgpu-image.tar
	$(RELEASE_IMAGE) --scheduler --output $(PARTIAL)/nri-vgpu-scheduler-image.tar
	$(WRITE_RELEASE) --build $(BUILD) --build $(BUILD)/arm64 $(CLIENTS:%=--client %) --man $(BUILD)/man --output $(PARTIAL) \
	  --date "$$(git log -1 --format=%ct 2>/dev/null || echo 0)"
	mv $(PARTIAL) $(RELEASE)

.PHONY: release-check
release-check:
	@$(WRITE_RELEASE) --check

.PHONY: release-twice
release-twice: ## make the release VERSION=0.1.0 in two clones at different paths, and compare all files; runs every night
	tools/release-twice.sh "$(VERSION)"
