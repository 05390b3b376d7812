#!/usr/bin/env bash
# scp and longhaul over an emulated transatlantic path on this machine. Needs no root, no
# configuration and nothing installed but Rust: without an sshd the far end is longhaul's own server,
# without scp longhaul runs alone. Leaves nothing behind, also when it is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

# One command, so that dependencies are built once. cargo shows how far it is.
if [ ! -x target/release/demo ] || [ ! -x target/release/longhaul ]; then
    echo "demo: building longhaul; the first time this takes about seven minutes on two cores" >&2
fi
cargo build --locked --release -p longhaul -p longhaul-tests --bin longhaul --bin demo
scratch=$(mktemp -d "${TMPDIR:-/tmp}/longhaul-demo-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
TMPDIR=$scratch target/release/demo
