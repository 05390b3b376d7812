#!/usr/bin/env bash
# The race: longhaul and its peers on emulated paths and on loopback. Writes
# results/DATE-race.json and the page beside it, and compares longhaul with the last kept result.
# Before that it says whether the emulated path is what was asked (BENCH_TRUTH=no leaves it out).
#
#   scripts/bench.sh [quick|full]      quick (about ten minutes on two cores) if not said
#   scripts/bench.sh sweep             longhaul alone: the connections and channels that it finds
#                                      beside fixed ones, one run of each; into results/sweep
#   scripts/bench.sh --list            the scenarios
#   scripts/bench.sh --compare A B     two results
#   scripts/bench.sh --tables          writes the tables of docs/benchmarks.md from results/
#
#   BENCH_SCENARIOS   names or globs, with commas: 'transatlantic-*,loopback-file/up'
#   BENCH_TOOLS       the same of tools: 'longhaul,scp,mscp*'
#   BENCH_RUNS        runs of each tool (3); the medians count
#   BENCH_SCALE       sizes and numbers of files are multiplied by this (1)
#   BENCH_LIMIT       seconds after which a run is ended, instead of each scenario's own
#   BENCH_DIR         where the files lie (/dev/shm); as much as twice the largest scenario. A tmpfs
#                     of large pages shows more of the programs and less of what writing to memory
#                     costs: mount -t tmpfs -o huge=always,size=14g tmpfs DIR
#   BENCH_RESULTS     where results are kept (results)
#   LONGHAUL_PEERS    where hpn-ssh and mscp were built: DIR/hpn-ssh and DIR/mscp
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup-bench.sh
cargo build --locked --release -p longhaul -p longhaul-tests --bin longhaul --bin bench \
    --example lab_truth
case ${1:-quick} in
quick | full) [ "${BENCH_TRUTH:-yes}" = no ] || target/release/examples/lab_truth ;;
esac
exec target/release/bench "$@"
