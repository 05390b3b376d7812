#!/usr/bin/env bash
# All checks, as CI runs them: setup, lints, tests, a short run of the fuzzers (they are tests of the
# workspace). Ends with what was skipped, and one line of totals.
set -uo pipefail
cd "$(dirname "$0")/.."

# What a shell starts in the background ignores SIGINT for good, which the tests send.
if [ -z "${LONGHAUL_SIGNALS-}" ] && env --default-signal true 2>/dev/null; then
    export LONGHAUL_SIGNALS=default
    exec env --default-signal scripts/test.sh "$@"
fi

failed=()
step() {
    local name=$1 begun=$SECONDS done=0
    shift
    echo "== $name"
    "$@" || done=1
    [ "$done" = 0 ] || failed+=("$name")
    echo "== $name: $((SECONDS - begun)) s"
    return "$done"
}

log=target/test.log
export LONGHAUL_SKIPPED=$PWD/target/skipped.txt
mkdir -p target
unsteady=target/unsteady.txt
rm -f "$LONGHAUL_SKIPPED" "$unsteady" "$log"
# Every build of CI is the first: records for the next one cost time and 8 GB.
[ -z "${CI-}" ] || export CARGO_INCREMENTAL=0

# The tests of the whole program run the binary of the same profile, which is built with them. By itself
# (-p longhaul) it would be built again: dependencies have fewer features without the tests.
build() {
    cargo test --locked --workspace --no-run
}

# Most of them wait, for paths that are slow on purpose and for real clocks: two at a time on two cores use
# half a core.
tests() {
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2))}
    cargo test --locked --workspace --no-fail-fast 2>&1 | tee "$log"
    [ "${PIPESTATUS[0]}" = 0 ] || again
}

# Hundreds of tests with real programs and real clocks share two cores: a few that failed may try once
# more, each by itself. That one did is said at the end, and its first failure stands in the log: it is
# a defect to be found, of the test or of what it tests.
most_again=3
again() {
    local binary test
    awk '
        /^test .* \.\.\. FAILED$/ { failed[++n] = $2 }
        /^error: test failed, to rerun pass `/ {
            split($0, part, "`")
            for (i = 1; i <= n; i++) print part[2] "\t" failed[i]
            if (n == 0) print part[2] "\t"
            n = 0
        }
    ' "$log" >target/failed.txt
    [ -s target/failed.txt ] && [ "$(wc -l <target/failed.txt)" -le "$most_again" ] || return 1
    while IFS=$'\t' read -r binary test; do
        [ -n "$test" ] || return 1
        echo "== again: $test"
        # Of the workspace, as before: a package by itself would be built anew, with fewer features.
        # shellcheck disable=SC2086 # several words
        cargo test --locked --workspace ${binary#-p * } -- --exact "$test" </dev/null 2>&1 \
            | tee target/again.log
        grep -q '^test result: ok. 1 passed' target/again.log || return 1
    done <target/failed.txt
    mv target/failed.txt "$unsteady"
}

step setup scripts/setup-tests.sh
step lint scripts/lint.sh
step build build && step tests tests

if [ -s "$LONGHAUL_SKIPPED" ]; then
    echo
    echo "Not everything ran:"
    sort -u "$LONGHAUL_SKIPPED" | sed 's/^/  /'
fi
steadied=0
if [ -s "$unsteady" ]; then
    steadied=$(wc -l <"$unsteady")
    echo
    echo "Failed among the others, and passed alone:"
    cut -f2 "$unsteady" | sed 's/^/  /'
fi
[ "${#failed[@]}" = 0 ] || echo "FAILED: ${failed[*]}"
# cargo has a line for each test binary; this is their sum.
awk -v steadied="$steadied" '
    /^test result:/ {
        for (i = 1; i < NF; i++) {
            if ($(i + 1) == "passed;") passed += $i
            if ($(i + 1) == "failed;") broken += $i
            if ($(i + 1) == "ignored;") ignored += $i
        }
    }
    END { passed += steadied; broken -= steadied }
    END { printf "total: %d passed, %d failed, %d skipped\n", passed, broken, ignored }
' "$log" 2>/dev/null
[ "${#failed[@]}" = 0 ]
