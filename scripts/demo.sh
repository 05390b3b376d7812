#!/usr/bin/env bash
# scp and longhaul side by side over an emulated long path on this machine. Needs no root and no
# configuration; starts an sshd of its own on a free port of 127.0.0.1 and ends it again.
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
cargo build --locked --quiet --release -p longhaul-tests --example demo
exec target/release/examples/demo
