#!/usr/bin/env bash
# What --verify costs: copies of a large file with and without it, alternating, both ways, by each
# program that the far end may have. The bars: 1.25 on loopback, 1.05 on the transatlantic path.
#
#   scripts/verify.sh [--runs N] [--size MiB] [--programs "xxhsum openssl"] [--transatlantic]
set -euo pipefail
cd "$(dirname "$0")/.."
runs=5 size=2048 programs="xxhsum b3sum openssl sha256sum" path=loopback
while [ $# -gt 0 ]; do
    case $1 in
    --runs) runs=$2; shift 2 ;;
    --size) size=$2; shift 2 ;;
    --programs) programs=$2; shift 2 ;;
    --transatlantic) path=transatlantic; shift ;;
    *) sed -n '2,5p' "$0" >&2; exit 2 ;;
    esac
done
longhaul=${LONGHAUL_BIN:-$PWD/target/release/longhaul}
work=$(mktemp -d "${VERIFY_DIR:-/dev/shm}/longhaul-verify-XXXXXX")
sshd_pid=
finish() {
    [ -z "$sshd_pid" ] || kill "$sshd_pid" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
head -c "${size}M" /dev/urandom >"$work/file"

# A folder with one program that makes sums, and what the script beside it needs.
only() {
    mkdir -p "$work/bin-$1"
    for name in sh dd head tail xargs getconf "$1"; do
        ln -sf "$(command -v "$name")" "$work/bin-$1/$name"
    done
}

loopback() { # program
    local port=$((20000 + RANDOM % 20000))
    for key in host client; do
        [ -f "$work/$key" ] || ssh-keygen -q -t ed25519 -N '' -f "$work/$key"
    done
    cat >"$work/sshd_config" <<END
Port $port
ListenAddress 127.0.0.1
HostKey $work/host
AuthorizedKeysFile $work/client.pub
StrictModes no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
SetEnv PATH=$work/bin-$1 SHLVL=1
END
    echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 "$work/host.pub")" >"$work/known_hosts"
    cat >"$work/ssh_config" <<END
Host far
HostName 127.0.0.1
Port $port
User $(id -un)
IdentityFile $work/client
IdentitiesOnly yes
UserKnownHostsFile $work/known_hosts
BatchMode yes
END
    [ -d /run/sshd ] || mkdir -p /run/sshd
    "$(command -v sshd)" -D -e -f "$work/sshd_config" 2>/dev/null &
    sshd_pid=$!
    sleep 1
}

# Prints seconds.
copy() { # config, flags, from, to
    rm -f "$work/copy"
    local begin end
    begin=$(date +%s.%N)
    # shellcheck disable=SC2086
    "$longhaul" cp -q -F "$1" $2 "$3" "$4" >&2
    end=$(date +%s.%N)
    cmp "$work/file" "$work/copy" >&2
    echo "$end - $begin" | bc
}

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

measure() { # config, program
    local way from to with without
    for way in up down; do
        from=$work/file to=far:$work/copy
        [ $way = up ] || { from=far:$work/file; to=$work/copy; }
        copy "$1" "" "$from" "$to" >/dev/null
        with='' without=''
        for _ in $(seq "$runs"); do
            without+="$(copy "$1" "" "$from" "$to")"$'\n'
            with+="$(copy "$1" --verify "$from" "$to")"$'\n'
        done
        without=$(printf %s "$without" | median)
        with=$(printf %s "$with" | median)
        printf '%-14s %-10s %-5s %7.2f s without, %7.2f s with: %.2f\n' \
            "$path" "$2" "$way" "$without" "$with" "$(echo "$with / $without" | bc -l)"
    done
}

export -f copy median measure
export longhaul work runs path
for program in $programs; do
    command -v "$program" >/dev/null || { echo "$program is not here"; continue; }
    only "$program"
    if [ "$path" = loopback ]; then
        loopback "$program"
        measure "$work/ssh_config" "$program"
        kill "$sshd_pid" && wait "$sshd_pid" 2>/dev/null || true
        sshd_pid=
    else
        "$longhaul" lab -q --path transatlantic --sshd --sshd-option "SetEnv=PATH=$work/bin-$program" -- \
            bash -c 'measure "$LONGHAUL_LAB_CONFIG" "$0"' "$program"
    fi
done
