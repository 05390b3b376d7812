#!/usr/bin/env bash
# Installs what the race runs beside longhaul: rsync, rclone, lftp, iperf3 and OpenSSH, as Debian
# packages. As root it installs them; otherwise it says what is missing, and the report names it.
# HPN-SSH and mscp are no packages: LONGHAUL_PEERS=DIR has DIR/hpn-ssh and DIR/mscp, built there.
set -euo pipefail
cd "$(dirname "$0")/.."

has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

wanted=()
has sshd || wanted+=(openssh-server)
has scp || wanted+=(openssh-client)
for program in rsync rclone lftp iperf3 tar; do
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
