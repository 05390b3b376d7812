#!/usr/bin/env bash
# scp and longhaul over an emulated transatlantic path on this machine. Needs no root and no
# configuration, and leaves nothing behind, also when it is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in sshd ssh scp ssh-keygen; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || {
        echo "The demo needs $program: install OpenSSH's client and server" \
            "(Debian: openssh-client openssh-server)." >&2
        exit 1
    }
done
cargo build --locked --quiet --release -p longhaul
cargo build --locked --quiet --release -p longhaul-tests --bin demo
scratch=$(mktemp -d "${TMPDIR:-/tmp}/longhaul-demo-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
TMPDIR=$scratch target/release/demo
