#!/usr/bin/env bash
# scp and longhaul over an emulated transatlantic path on this machine. Needs no root, no
# configuration and nothing installed but Rust: without an sshd the far end is longhaul's own server,
# without scp longhaul runs alone. Leaves nothing behind, also when it is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked --quiet --release -p longhaul
cargo build --locked --quiet --release -p longhaul-tests --bin demo
scratch=$(mktemp -d "${TMPDIR:-/tmp}/longhaul-demo-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
TMPDIR=$scratch target/release/demo
