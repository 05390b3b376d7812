#!/usr/bin/env bash
# Time and memory of longhaul plan for a million files on this machine, with a warm cache. Makes the
# tree below TMPDIR (5 GB of inodes and directories) and removes it.
#   LONGHAUL=PROGRAM FILES=1000000 scripts/plan-million.sh
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(readlink -f "${LONGHAUL:-target/release/longhaul}")
files=${FILES:-1000000}
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
python3 - "$box" "$files" "$program" <<'MEASURE'
import os, resource, subprocess, sys, time
box, files, program = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for n in range(files):
    folder = f"{box}/from/{n // 10_000:03d}/{n // 200 % 50:02d}"
    if n % 200 == 0:
        os.makedirs(folder)
    os.close(os.open(f"{folder}/file-{n:07d}.dat", os.O_CREAT | os.O_WRONLY, 0o644))
for run in range(3):
    subprocess.run(["rm", "-rf", f"{box}/plan"], check=True)
    began = time.monotonic()
    words = [program, "plan", f"{box}/from", f"{box}/to", "--shards", "20", "-o", f"{box}/plan"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began
    # The largest of the children so far.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(f"{files} files planned in {took:.1f} s, at most {peak} MiB")
assert took < 20 * max(1, files / 1_000_000) and peak < 300
MEASURE
