#!/usr/bin/env bash
# longhaul sync beside rsync in one run: trees that are equal, also by their extended attributes,
# which BENCH_DIR must keep; a hundred changed files; a changed file of 1 GiB; a million entries on
# loopback. Each tool runs in turn on the same two trees, medians count, and the exit status is 1 if
# a bar of the table is missed. Needs rsync, /dev/net/tun and 8 GB below BENCH_DIR.
#   LONGHAUL=PROGRAM CASES=unchanged,xattrs,changed,delta,million RUNS=5 SCALE=1 scripts/sync-race.sh
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(readlink -f "${LONGHAUL:-target/release/longhaul}")
box=$(mktemp -d -p "${BENCH_DIR:-/dev/shm}")
trap 'rm -rf "$box"' EXIT
mkdir "$box/bin"
cp "$program" "$box/bin/longhaul"
cp scripts/sync-race.py "$box/race.py"
export XDG_STATE_HOME="$box/state" XDG_CACHE_HOME="$box/cache" PATH="$box/bin:$PATH"
export BOX="$box" RUNS="${RUNS:-5}" SCALE="${SCALE:-1}"
status=0
for case in $(tr , ' ' <<<"${CASES:-unchanged,xattrs,changed,delta,million}"); do
    path=(--path transatlantic --tcp stock --cc cubic)
    [ "$case" = million ] && path=(--rtt 0 --rate 100Gbit)
    longhaul lab "${path[@]}" --quiet --sshd --sshd-option "SetEnv=PATH=$box/bin:/usr/bin:/bin" \
        -- python3 "$box/race.py" "$case" || status=1
done
exit $status
