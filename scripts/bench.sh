#!/usr/bin/env bash
# Whether the lab's path is what was asked; then rates, processor time and round trips beside scp,
# on loopback. BENCH_SIZE (4G), BENCH_RUNS (3)
# and BENCH_CIPHER change it. Writes results/DATE-loopback.json.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --locked --quiet --release -p longhaul
cargo build --locked --quiet --release -p longhaul-tests --example bench --example lab_truth
target/release/examples/lab_truth
exec target/release/examples/bench
