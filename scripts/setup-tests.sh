#!/usr/bin/env bash
# Installs what the tests need: real SSH servers to talk to. Does nothing that is already done, and
# is quick then. As root it installs Debian packages; otherwise it says what is missing, and the
# tests of that peer are skipped (in CI they fail).
set -euo pipefail
cd "$(dirname "$0")/.."

peers=target/peers
missing=()
mkdir -p "$peers/bin"

has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

# --- packages of the distribution ------------------------------------------------------------
wanted=()
has sshd || wanted+=(openssh-server)
has scp && has ssh-agent || wanted+=(openssh-client)
[ -x /usr/lib/openssh/sftp-server ] || [ -x /usr/libexec/openssh/sftp-server ] \
    || [ -x /usr/lib/ssh/sftp-server ] || wanted+=(openssh-sftp-server)
{ has dropbear && has dropbearconvert; } || wanted+=(dropbear-bin)
{ has proftpd && [ -e /usr/lib/proftpd/mod_sftp.so ]; } || wanted+=(proftpd-core proftpd-mod-crypto)
has openssl || wanted+=(openssl)
has script || wanted+=(bsdutils)
has setpriv || wanted+=(util-linux)
has iperf3 || wanted+=(iperf3)
has rsync || wanted+=(rsync)
has git || wanted+=(git)
has nc || wanted+=(netcat-openbsd)
has objdump || wanted+=(binutils)
has systemd-analyze && has systemd-socket-activate || wanted+=(systemd)
has lftp || wanted+=(lftp)
has rclone || wanted+=(rclone)
has sshfs || wanted+=(sshfs)
has curl || wanted+=(curl)
has redis-server && has redis-benchmark || wanted+=(redis-server redis-tools)
has musl-gcc || wanted+=(musl-tools)
# Other distributions have it as a snap alone, and often Chrome beside it.
has chromium || has chromium-browser || has google-chrome || wanted+=(chromium)
has tcpdump || wanted+=(tcpdump)
has ping || wanted+=(iputils-ping)
has ip || wanted+=(iproute2)
has nft || wanted+=(nftables)
has cc || wanted+=(gcc libc6-dev)
[ -e /usr/include/libssh/server.h ] || wanted+=(libssh-dev)
python3 -c 'import venv, ensurepip' 2>/dev/null || wanted+=(python3-venv)

if [ "${#wanted[@]}" -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && has apt-get; then
        echo "setup: installing ${wanted[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        # Servers must not start by themselves, nor hold the port of the machine's own.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e "$policy" ]; then
            printf '#!/bin/sh\nexit 101\n' >"$policy"
            chmod 755 "$policy"
            trap 'rm -f "$policy"' EXIT
        fi
        apt-get install -y -qq --no-install-recommends "${wanted[@]}" >"$peers/apt.log" 2>&1 \
            || { cat "$peers/apt.log"; missing+=("packages: ${wanted[*]}"); }
    else
        missing+=("packages (as root: apt-get install ${wanted[*]})")
    fi
fi

# --- paramiko, asyncssh, ssh-audit and typos, pinned, in a folder of their own ---------------------------
stamp="$peers/venv/requirements.txt"
if ! cmp -s tests/peers/requirements.txt "$stamp"; then
    echo "setup: paramiko, asyncssh, ssh-audit and typos"
    rm -rf "$peers/venv"
    if python3 -m venv "$peers/venv" \
        && "$peers/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --no-deps -r tests/peers/requirements.txt \
        && "$peers/venv/bin/python" -c 'import asyncssh, paramiko, ssh_audit'; then
        cp tests/peers/requirements.txt "$stamp"
    else
        rm -rf "$peers/venv"
        missing+=("Python packages paramiko, asyncssh, ssh-audit and typos (tests/peers/requirements.txt)")
    fi
fi

# --- server and client around Go's x/crypto/ssh ------------------------------------------------
newer() { [ ! -e "$1" ] || [ -n "$(find "${@:2}" -newer "$1" -print -quit)" ]; }

for part in server client; do
    newer "$peers/bin/go-$part" tests/peers/go || continue
    package=.
    [ "$part" = server ] || package=./$part
    if has go; then
        echo "setup: the Go $part"
        (cd tests/peers/go && go build -trimpath -o "../../../$peers/bin/go-$part" "$package") \
            || missing+=("the Go $part (go build failed in tests/peers/go)")
    else
        missing+=("Go (1.26 or later), for tests/peers/go")
    fi
done

# --- the server around libssh ------------------------------------------------------------------
if newer "$peers/bin/libssh-server" tests/peers/libssh; then
    if has cc && [ -e /usr/include/libssh/server.h ]; then
        echo "setup: the libssh server"
        cc -O1 -Wall -Wextra -o "$peers/bin/libssh-server" tests/peers/libssh/server.c -lssh \
            || missing+=("the libssh server (cc failed in tests/peers/libssh)")
    else
        missing+=("a C compiler and libssh's headers (Debian: gcc libssh-dev)")
    fi
fi

if [ "${#missing[@]}" -gt 0 ]; then
    echo "setup: missing, so some tests will be skipped:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    [ "${CI:-}" != true ] || exit 1
fi
