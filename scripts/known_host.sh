#!/usr/bin/env bash
# Seconds of a copy of random data over an emulated path: to a host that is new and to the same one
# again, with a stock sshd and with a longhaul behind one. Runs alternate, medians count. The bars: a
# known host is no slower than a new one, and a longhaul there makes no copy slower than stock.
#
#   scripts/known_host.sh [--runs N] [--rtt TIME] [--rate RATE] [--sizes "MB MB"] [--slow-shell]
#
# --slow-shell has each command of the login take a second to start; the count of starts is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=3 rtt=60ms rate=300Mbit sizes="30 64 200" slow=
while [ $# -gt 0 ]; do
    case $1 in
    --runs) runs=$2; shift 2 ;;
    --rtt) rtt=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    --sizes) sizes=$2; shift 2 ;;
    --slow-shell) slow=1; shift ;;
    *) sed -n '2,9p' "$0" >&2; exit 2 ;;
    esac
done
longhaul=${LONGHAUL_BIN:-$PWD/target/release/longhaul}
work=$(mktemp -d "${TMPDIR:-/tmp}/longhaul-known-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/far"
ln -s "$longhaul" "$work/bin/longhaul"
cat >"$work/shell" <<END
#!/bin/sh
echo start >>"$work/starts"
sleep 1
case \$SSH_ORIGINAL_COMMAND in
internal-sftp*|*sftp-server*) exec /usr/lib/openssh/sftp-server ;;
esac
exec sh -c "\$SSH_ORIGINAL_COMMAND"
END
chmod +x "$work/shell"

# Prints the seconds of two copies in one lab, of which the first finds a new host.
both() {
    local far=$1 size=$2 path=/usr/bin:/bin options=()
    [ "$far" = longhaul ] && path=$work/bin:$path
    options=(--sshd-option "SetEnv=PATH=$path")
    [ -n "$slow" ] && options+=(--sshd-option "ForceCommand=$work/shell")
    rm -rf "$work/cache"
    XDG_CACHE_HOME=$work/cache "$longhaul" lab --rtt "$rtt" --rate "$rate" --sshd "${options[@]}" -q -- sh -c "
        for run in new known; do
            rm -f '$work/far/'*
            start=\$(date +%s%N)
            '$longhaul' cp -q '$work/$size' far:'$work/far/copy'
            echo \$(((\$(date +%s%N) - start) / 1000000))
        done" | paste -sd ' '
}
median() { sort -n | awk '{ at[NR] = $1 } END { printf "%.2f", at[int((NR + 1) / 2)] / 1000 }'; }

for size in $sizes; do
    head -c "${size}000000" /dev/urandom >"$work/$size"
    for _ in $(seq "$runs"); do
        for far in stock longhaul; do both $far "$size" >>"$work/$far.$size"; done
    done
    for far in stock longhaul; do
        printf '%s MB, %s: new %s s, known %s s\n' "$size" "$far" \
            "$(cut -d' ' -f1 "$work/$far.$size" | median)" "$(cut -d' ' -f2 "$work/$far.$size" | median)"
    done
done
[ -z "$slow" ] || printf '%s starts of a shell\n' "$(wc -l <"$work/starts")"
