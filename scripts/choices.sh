#!/usr/bin/env bash
# What a copy chooses by itself beside every fixed setting: text, the same gzipped, and random bytes,
# to a stock sshd and to a longhaul behind one, over an emulated path or on loopback. Runs of the
# settings alternate, medians count. The bar: by itself within 5 % of the best of the others.
#
#   scripts/choices.sh [--runs N] [--size MiB] [--far "stock exec"] [--data "text gzip random"]
#                      [transatlantic | 100mbit | loopback]
set -euo pipefail
cd "$(dirname "$0")/.."
runs=3 size=64 fars="stock exec" data="text gzip random" path=loopback
while [ $# -gt 0 ]; do
    case $1 in
    --runs) runs=$2; shift 2 ;;
    --size) size=$2; shift 2 ;;
    --far) fars=$2; shift 2 ;;
    --data) data=$2; shift 2 ;;
    transatlantic | 100mbit | loopback) path=$1; shift ;;
    *) sed -n '2,7p' "$0" >&2; exit 2 ;;
    esac
done
longhaul=${LONGHAUL_BIN:-$PWD/target/release/longhaul}
work=$(mktemp -d "${CHOICES_DIR:-/dev/shm}/longhaul-choices-XXXXXX")
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
mkdir "$work/bin"
ln -s "$longhaul" "$work/bin/longhaul"

# Sources are text. Repeated beyond what zlib and a block of zstd look back on.
find crates docs tests -name '*.rs' -o -name '*.md' | sort | xargs cat >"$work/once"
gzip -9 <"$work/once" >"$work/once.gz"
fill() { while cat "$1"; do :; done 2>/dev/null | head -c "${size}M" || true; }
for kind in $data; do
    case $kind in
    text) fill "$work/once" >"$work/text" ;;
    gzip) fill "$work/once.gz" >"$work/gzip" ;;
    random) head -c "${size}M" /dev/urandom >"$work/random" ;;
    esac
done

# Prints MB/s. Nothing is there that could be used again.
copy() { # data, flags
    rm -f "$work/copy"
    local begin end
    begin=$(date +%s%N)
    # shellcheck disable=SC2086
    "$longhaul" cp -q -F "$LONGHAUL_LAB_CONFIG" $2 "$work/$1" "far:$work/copy" >&2
    end=$(date +%s%N)
    cmp "$work/$1" "$work/copy" >&2
    echo "$size $((end - begin))" | awk '{ printf "%.1f\n", $1 * 1048.576 / ($2 / 1e6) }'
}

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

measure() {
    local far kind setting run best
    for far in $fars; do
        for kind in $data; do
            # What the path is like is remembered from the second time on.
            copy "$kind" "--far-end=$far --compress=never" >/dev/null
            rm -f "$work"/rate-*
            for run in $(seq "$runs"); do
                for setting in never always itself; do
                    flag=--compress=$setting
                    [ "$setting" != itself ] || flag=
                    copy "$kind" "--far-end=$far $flag" >>"$work/rate-$setting"
                done
            done
            for setting in never always itself; do
                median <"$work/rate-$setting" >"$work/median-$setting"
            done
            best=$(sort -n "$work/median-never" "$work/median-always" | tail -1)
            printf '%-14s %-6s %-7s never %7.1f  always %7.1f  by itself %7.1f MB/s: %.2f of the best\n' \
                "$path" "$far" "$kind" "$(cat "$work/median-never")" "$(cat "$work/median-always")" \
                "$(cat "$work/median-itself")" \
                "$(echo "$(cat "$work/median-itself") / $best" | bc -l)"
            "$longhaul" cp -F "$LONGHAUL_LAB_CONFIG" --explain "--far-end=$far" "$work/$kind" \
                "far:$work/copy" 2>&1 | grep -E '^(zlib|zstd):' | sed 's/^/    /'
        done
    done
}

export -f copy median measure
export longhaul work runs path size fars data
case $path in
transatlantic) options=(--path transatlantic) ;;
100mbit) options=(--rtt 1ms --rate 100Mbit) ;;
loopback) options=() ;;
esac
if [ "$path" = loopback ]; then
    port=$((20000 + RANDOM % 20000))
    for key in host client; do ssh-keygen -q -t ed25519 -N '' -f "$work/$key"; done
    cat >"$work/sshd_config" <<END
Port $port
ListenAddress 127.0.0.1
HostKey $work/host
AuthorizedKeysFile $work/client.pub
StrictModes no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
SetEnv PATH=$work/bin:/usr/bin:/bin
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
    "$(command -v sshd)" -D -e -f "$work/sshd_config" 2>"$work/sshd.log" &
    sshd_pid=$!
    trap 'kill "$sshd_pid" 2>/dev/null || true; rm -rf "$work"' EXIT
    until ssh -F "$work/ssh_config" far true 2>/dev/null; do sleep 0.1; done
    LONGHAUL_LAB_CONFIG=$work/ssh_config measure
else
    "$longhaul" lab -q "${options[@]}" --sshd \
        --sshd-option "SetEnv=PATH=$work/bin:/usr/bin:/bin" -- bash -c measure
fi
