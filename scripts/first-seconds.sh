#!/usr/bin/env bash
# Seconds of copies of 1 to 256 MiB of random data over an emulated path, up and down, to a host that
# is new and to the same one again, beside the model (`longhaul lab --estimate`) and, with --peers,
# beside the other programs that are installed. The far end is the system's sshd, whose sessions start
# /bin/sh without start-up files. Runs alternate, medians count. The bar: 1.25 of the model, 1.5 with
# losses.
#
#   scripts/first-seconds.sh [--runs N] [--rtt TIME] [--rate RATE] [--loss SHARE] [--tcp PROFILE]
#                            [--sizes "MIB MIB"] [--peers]
set -euo pipefail
cd "$(dirname "$0")/.."
runs=5 rtt=114ms rate=1Gbit loss=0% tcp=stock sizes="1 16 64 256" peers=
while [ $# -gt 0 ]; do
    case $1 in
    --runs) runs=$2; shift 2 ;;
    --rtt) rtt=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    --loss) loss=$2; shift 2 ;;
    --tcp) tcp=$2; shift 2 ;;
    --sizes) sizes=$2; shift 2 ;;
    --peers) peers=1; shift ;;
    *) sed -n '2,10p' "$0" >&2; exit 2 ;;
    esac
done
longhaul=${LONGHAUL_BIN:-$PWD/target/release/longhaul}
# A state folder that others may write to is not used.
work=$(umask 077 && mktemp -d "${TMPDIR:-/tmp}/longhaul-seconds-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/near" "$work/far" "$work/state" "$work/cache"
path=(--rtt "$rtt" --rate "$rate" --tcp "$tcp" --cc cubic)
limit=1.25
[ "$loss" = 0% ] || { path+=(--loss "$loss"); limit=1.5; }

programs="longhaul"
if [ -n "$peers" ]; then
    for peer in scp rsync mscp rclone; do
        command -v "$peer" >/dev/null && programs+=" $peer"
    done
fi

cat >"$work/copy" <<'END'
#!/usr/bin/env bash
# copy PROGRAM FROM DIR: one of the two begins with far:
set -e
case $1 in
longhaul) "$LONGHAUL" cp -q "$2" "$3" ;;
scp) scp -q "$2" "$3" ;;
rsync) rsync -W --inplace "$2" "$3" ;;
mscp) mscp -q -n 16 "$2" "$3" ;;
rclone)
    RCLONE_SFTP_HOST=$(ssh -T -G far | awk '$1 == "hostname" { print $2 }')
    export RCLONE_SFTP_HOST RCLONE_SFTP_PORT=$LONGHAUL_LAB_PORT
    export RCLONE_SFTP_USER=$LONGHAUL_LAB_USER RCLONE_SFTP_KEY_FILE=$LONGHAUL_LAB_KEY
    rclone -q --config /dev/null copy "${2/#far:/:sftp:}" "${3/#far:/:sftp:}"
    ;;
esac
END
cat >"$work/all" <<'END'
#!/usr/bin/env bash
# Prints: way, MiB, state of the host, program, milliseconds
set -e
timed() {
    local from to start
    case $1 in
    up) from=$WORK/near/$2 to=far:$WORK/far/ ;;
    down) from=far:$WORK/near/$2 to=$WORK/far/ ;;
    esac
    rm -f "$WORK/far/$2"
    start=$(date +%s%N)
    timeout 300 "$WORK/copy" "$4" "$from" "$to" >/dev/null
    echo "$1 $2 $3 $4 $(((($(date +%s%N) - start)) / 1000000))"
    cmp -s "$WORK/near/$2" "$WORK/far/$2" || { echo "$1 $2 $3 $4: another file arrived" >&2; exit 1; }
}
for _ in $(seq "$RUNS"); do
    for size in $SIZES; do
        for way in up down; do
            for program in $PROGRAMS; do
                if [ "$program" != longhaul ]; then
                    timed "$way" "$size" first "$program"
                    continue
                fi
                rm -rf "$WORK/state" "$WORK/cache"
                mkdir -m 700 "$WORK/state" "$WORK/cache"
                timed "$way" "$size" first longhaul
                timed "$way" "$size" known longhaul
            done
        done
    done
done
END
chmod +x "$work/copy" "$work/all"
for size in $sizes; do
    head -c "$((size << 20))" /dev/urandom >"$work/near/$size"
    "$longhaul" lab "${path[@]}" --estimate "${size}MiB" \
        | awk -v size="$size" '$2 == "first" || $2 == "known" { print "model", $1, size, $2, $4 }'
done >"$work/model"
LONGHAUL=$longhaul WORK=$work RUNS=$runs SIZES=$sizes PROGRAMS=$programs \
    XDG_STATE_HOME=$work/state XDG_CACHE_HOME=$work/cache \
    "$longhaul" lab "${path[@]}" --sshd -q -- "$work/all" >"$work/times"

echo "round trip $rtt, $rate, loss $loss, TCP $tcp; medians of $runs, seconds"
awk -v limit="$limit" '
    $1 == "model" { model[$2 " " $3 " " $4] = $5; next }
    {
        key = $1 " " $2 " " $3 " " $4
        if (!(key in runs)) order[++keys] = key
        times[key, ++runs[key]] = $5 / 1000
    }
    END {
        for (k = 1; k <= keys; k++) {
            key = order[k]; n = runs[key]
            for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (times[key, j] < times[key, i]) {
                t = times[key, i]; times[key, i] = times[key, j]; times[key, j] = t
            }
            split(key, part, " ")
            middle = times[key, int((n + 1) / 2)]
            line = sprintf("%-4s %4d MiB %-5s %-8s %7.2f  [%.2f to %.2f]", part[1], part[2], part[3], part[4], middle, times[key, 1], times[key, n])
            expected = model[part[1] " " part[2] " " part[3]]
            if (part[4] == "longhaul" && expected > 0) {
                ratio = middle / expected
                line = line sprintf("  model %.2f, ratio %.2f%s", expected, ratio, ratio > limit ? " MISSED" : "")
                if (ratio > limit) missed++
            }
            print line
        }
        if (missed) printf "%d above %.2f of the model\n", missed, limit
    }' "$work/model" "$work/times"
