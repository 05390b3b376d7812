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
rm -f "$LONGHAUL_SKIPPED" "$log"
# Every build of CI is the first: records for the next one cost time and 8 GB, and line tables cost time.
[ -z "${CI-}" ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false

# Everything that has tests. Examples have none: clippy checks that they compile.
parts=(--locked --workspace --lib --bins --tests)

# The tests of the whole program run the binary of the same profile, which is built with them. By itself
# (-p longhaul) it would be built again: dependencies have fewer features without the tests.
build() {
    cargo test "${parts[@]}" --no-run
}

# Most of them wait, for paths that are slow on purpose and for real clocks: two at a time on two cores use
# half a core.
tests() {
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2))}
    local ended=0
    cargo test "${parts[@]}" --no-fail-fast 2>&1 | tee "$log"
    ended=${PIPESTATUS[0]}
    cargo test --locked --workspace --doc --no-fail-fast 2>&1 | tee -a "$log"
    [ "${PIPESTATUS[0]}" = 0 ] || ended=1
    return "$ended"
}

step setup scripts/setup-tests.sh
step lint scripts/lint.sh
step build build && step tests tests

if [ -s "$LONGHAUL_SKIPPED" ]; then
    echo
    echo "Not everything ran:"
    sort -u "$LONGHAUL_SKIPPED" | sed 's/^/  /'
fi
[ "${#failed[@]}" = 0 ] || echo "FAILED: ${failed[*]}"
# cargo has a line for each test binary; this is their sum.
awk '
    /^test result:/ {
        for (i = 1; i < NF; i++) {
            if ($(i + 1) == "passed;") passed += $i
            if ($(i + 1) == "failed;") broken += $i
            if ($(i + 1) == "ignored;") ignored += $i
        }
    }
    END { printf "total: %d passed, %d failed, %d skipped\n", passed, broken, ignored }
' "$log" 2>/dev/null
[ "${#failed[@]}" = 0 ]
