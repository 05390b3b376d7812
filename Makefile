# What people run, and CI runs the same. `make help` lists it.

.DEFAULT_GOAL := build
.PHONY: build portable test lint fuzz soak units slurm plan-million many-hosts doctor-matrix doctor-noise openssh-regress demo bench sync-race bench-full man docs clean help

build: ## the release binary, target/release/longhaul
	cargo build --locked --release -p longhaul

portable: ## a release binary for any Linux of ten years: target/portable/longhaul
	scripts/portable.sh

test: ## everything CI checks: setup of the peers, lints, tests, a short fuzz run
	scripts/test.sh

lint: ## format, lints, documentation, spelling and dependencies
	scripts/lint.sh

fuzz: ## the fuzzers for FUZZ_SECONDS each (60 if not set)
	ARBTEST_BUDGET_MS=$$(($${FUZZ_SECONDS:-60} * 1000)) \
		cargo test --locked --release -p longhaul-fuzz --no-fail-fast -- --nocapture --test-threads 1

soak: ## a relay under everything at once, for SOAK_SECONDS (1800 if not set)
	cargo build --locked -p longhaul
	LONGHAUL_SOAK_SECONDS=$${SOAK_SECONDS:-1800} cargo test --locked -p longhaul-tests \
		--test relay soak -- --nocapture --include-ignored

units: build ## the systemd units under a real systemd, in a copy of this machine; as root
	scripts/units.sh

slurm: build ## 20 shards of 200,000 files on a real Slurm with 30 kills, as root; minutes
	FILES=$${FILES:-200000} scripts/slurm.sh

plan-million: build ## time and memory of longhaul plan for a million files
	scripts/plan-million.sh

many-hosts: ## copies between and through emulated hosts, against their bars, as root; ten minutes
	cargo build --locked --release -p longhaul -p longhaul-tests --bin longhaul --example many_hosts
	@for part in via auto direct through-here; do \
		target/release/examples/many_hosts $$part || failed=1; done; [ -z "$$failed" ]

doctor-matrix: ## verdicts of longhaul doctor on every fault of the lab, at RTT=600 ms alone if set; 90 minutes
	cargo build --locked --workspace --bin longhaul
	LONGHAUL_DOCTOR_MATRIX=1 LONGHAUL_DOCTOR_RTT=$(RTT) LONGHAUL_DOCTOR_CASE=$(CASE) cargo test --locked -p longhaul-tests --test lab -- \
		--nocapture --test-threads 1 every_fault_is_named combinations_with_other_figures

doctor-noise: ## ten verdicts of longhaul doctor on one noisy path; six minutes
	cargo build --locked --workspace --bin longhaul
	LONGHAUL_DOCTOR_MATRIX=1 cargo test --locked -p longhaul-tests --test lab -- \
		--nocapture --test-threads 1 a_noisy_path

openssh-regress: ## OpenSSH's own scripts for sftp against our server; SOURCE is OpenSSH's unpacked source
	cargo build --locked -p longhaul
	scripts/openssh-regress.sh "$(SOURCE)"

demo: ## longhaul beside scp over an emulated transatlantic path: a minute, and seven to build at first
	scripts/demo.sh

bench: ## the race in small: longhaul and its peers on emulated paths; ten minutes
	scripts/bench.sh quick

sync-race: ## longhaul sync beside rsync, in the lab and on loopback
	scripts/sync-race.sh

bench-full: ## all of the race; hours
	scripts/bench.sh full

man: ## man pages, completions and the table of flags, written below docs/
	cargo run --locked -p longhaul -- man --write docs

docs: ## the documentation as a site with search, target/book, and rustdoc, target/doc
	@command -v mdbook >/dev/null || { echo "mdbook is missing: cargo install mdbook" >&2; exit 1; }
	mdbook build docs
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --locked --workspace --no-deps --document-private-items

clean: ## everything that was built
	cargo clean

help: ## this list
	@awk -F ': ## ' '/^[a-z-]+: ## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
