#!/usr/bin/env bash
# Installs what the race runs beside longhaul: rsync, rclone, lftp, iperf3 and OpenSSH, as Debian
# packages. As root it installs them; otherwise it says what is missing, and the report names it.
# HPN-SSH and mscp are no packages: LONGHAUL_PEERS=DIR has DIR/hpn-ssh and DIR/mscp, built there.
# For relay_cost also haproxy, socat, stunnel, and a relay of realm_core (tests/peers/realm).
set -euo pipefail
cd "$(dirname "$0")/.."

has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

wanted=()
has sshd || wanted+=(openssh-server)
has scp || wanted+=(openssh-client)
has stunnel || wanted+=(stunnel4)
for program in rsync rclone lftp iperf3 tar haproxy socat; do
    has "$program" || wanted+=("$program")
done

if [ "${#wanted[@]}" -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && has apt-get; then
        echo "setup: installing ${wanted[*]}" >&2
        export DEBIAN_FRONTEND=noninteractive
        # Servers must not start by themselves, nor hold the port of the machine's own.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e "$policy" ]; then
            printf '#!/bin/sh\nexit 101\n' >"$policy"
            chmod 755 "$policy"
            trap 'rm -f "$policy"' EXIT
        fi
        mkdir -p target
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${wanted[@]}"; } \
            >target/setup-bench.log 2>&1 \
            || { cat target/setup-bench.log >&2; echo "setup: not installed: ${wanted[*]}" >&2; }
    else
        echo "setup: missing (as root: apt-get install ${wanted[*]}); the report will say so" >&2
    fi
fi

peers=${LONGHAUL_PEERS:-}
for program in hpn-ssh/bin/hpnscp mscp/bin/mscp; do
    [ -n "$peers" ] && [ -x "$peers/$program" ] || has "${program##*/}" \
        || echo "setup: ${program##*/} is missing: LONGHAUL_PEERS names where it was built" >&2
done

realm=target/peers/bin/realm-relay
if [ ! -e "$realm" ] || [ -n "$(find tests/peers/realm -newer "$realm" -print -quit)" ]; then
    echo "setup: a relay of realm_core" >&2
    mkdir -p target/peers/bin
    if cargo build --locked --release --manifest-path tests/peers/realm/Cargo.toml \
        --target-dir target/peers/realm >target/setup-realm.log 2>&1; then
        cp target/peers/realm/release/realm-relay "$realm"
    else
        cat target/setup-realm.log >&2
        echo "setup: realm is missing: it could not be built; its rows are left out" >&2
    fi
fi
