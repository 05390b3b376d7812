#!/usr/bin/env bash
# Two builds of longhaul run the race in turn. Prints the ratios of their medians (new by old) of
# time, processor time of both ends and peak memory, and ends with 1 if a time is more than 3 % or a
# peak more than 5 % above the old one.
#   scripts/two-builds.sh OLD NEW     programs; both are measured by target/release/bench
#   ROUNDS (5), BENCH_SCENARIOS, BENCH_DIR and BENCH_SCALE as for scripts/bench.sh
set -euo pipefail
cd "$(dirname "$0")/.."
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
# How a program lies in the page cache decides how much of its text counts as its memory: four copies of
# one program differed by 5 %. Each round has copies of its own, so that the median is not one cache's.
old=$1 new=$2
export BENCH_RUNS=1 BENCH_TOOLS=longhaul
for round in $(seq "${ROUNDS:-5}"); do
    for build in old new; do
        echo "round $round: $build" >&2
        program=$box/$build-$round/longhaul
        mkdir "$box/$build-$round"
        cp "${!build}" "$program"
        LONGHAUL_BIN=$program BENCH_RESULTS=$box/$build-$round target/release/bench quick >"$box/log" 2>&1 \
            || { cat "$box/log" >&2; exit 2; }
        rm "$program"
    done
done
python3 - "$box" <<'END'
import glob
import json
import statistics
import sys

samples = {}
for build in ("old", "new"):
    for name in glob.glob(f"{sys.argv[1]}/{build}-*/*-race*.json"):
        with open(name) as file:
            result = json.load(file)
        for scenario in result["scenarios"]:
            for entry in scenario["entries"]:
                if entry["tool"] == "longhaul":
                    kept = samples.setdefault(scenario["name"], {}).setdefault(build, [])
                    kept += [s for s in entry["samples"] if s["ending"]["how"] == "done"]

missed = 0
print(f"{'scenario':32} {'old s':>8} {'new s':>8} {'time':>6} {'CPU':>6} {'memory':>7}")
for name, builds in samples.items():
    if len(builds) < 2 or not all(builds.values()):
        print(f"{name:32} failed in one build")
        missed += 1
        continue

    def median(build, value):
        return statistics.median(value(sample) for sample in builds[build])

    seconds = [median(build, lambda s: s["seconds"]) for build in ("old", "new")]
    cpu = [median(b, lambda s: s["client_cpu_seconds"] + (s["server_cpu_seconds"] or 0)) for b in ("old", "new")]
    memory = [median(b, lambda s: s["peak_memory_bytes"]) for b in ("old", "new")]
    ratio = [new / old if old else 1 for old, new in (seconds, cpu, memory)]
    slow = ratio[0] > 1.03 or ratio[2] > 1.05
    missed += slow
    print(
        f"{name:32} {seconds[0]:8.2f} {seconds[1]:8.2f} {ratio[0]:6.2f} {ratio[1]:6.2f} {ratio[2]:7.2f}"
        f"{'  MISSED' if slow else ''}"
    )
print(f"{missed} of {len(samples)} scenarios are above the bar")
sys.exit(missed > 0)
END
