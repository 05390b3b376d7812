"""Runs one case of scripts/sync-race.sh inside the lab, and prints its table."""

import os
import random
import shutil
import statistics
import subprocess
import sys
import time

BOX = os.environ["BOX"]
RUNS = int(os.environ["RUNS"])
SCALE = float(os.environ["SCALE"])
STOCK = ["longhaul", "sync", "--quiet", "--delete", "--far-end", "stock"]
EXEC = ["longhaul", "sync", "--quiet", "--delete", "--far-end", "exec"]
RSYNC = ["rsync", "-a", "--delete"]


def tree(root, files, folder):
    """Makes a tree of files with 100 to 30,000 bytes, `folder` of them in a directory."""
    chance = random.Random(1)
    text = chance.randbytes(30_000)
    for n in range(files):
        place = f"{root}/{n // (folder * 50):03d}/{n // folder % 50:02d}"
        if n % folder == 0:
            os.makedirs(place)
        size = chance.randrange(100, 3_000 if files > 20_000 else 30_000)
        name = f"{place}/file-{n:07d}.dat"
        with open(name, "wb", buffering=0) as file:
            if files < 500_000:
                file.write(text[:size])
        when = 1_600_000_000 + chance.randrange(10**8)
        os.utime(name, (when, when))


def rewrite_files(root, files, folder, count, chance):
    """Gives some files a new content and the present time."""
    for n in chance.sample(range(files), count):
        name = f"{root}/{n // (folder * 50):03d}/{n // folder % 50:02d}/file-{n:07d}.dat"
        with open(name, "wb") as file:
            file.write(chance.randbytes(15_000))
        now = time.time_ns() + chance.randrange(10**12)
        os.utime(name, ns=(now, now))


def rewrite_ranges(name, size, chance):
    """Writes a hundredth of a file in a hundred places."""
    part = size // 10_000
    with open(name, "r+b") as file:
        for _ in range(100):
            file.seek(chance.randrange(size - part))
            file.write(chance.randbytes(part))
    now = time.time_ns() + chance.randrange(10**12)
    os.utime(name, ns=(now, now))


def run(words):
    """Runs a command. Returns its seconds and its peak memory in MiB."""
    began = time.monotonic()
    pid = os.spawnvp(os.P_NOWAIT, words[0], words)
    _, status, usage = os.wait4(pid, 0)
    took = time.monotonic() - began
    if status:
        sys.exit(f"{' '.join(words)}: status {os.waitstatus_to_exitcode(status)}")
    return took, usage.ru_maxrss / 1024


def race(title, tools, bars, before=lambda: None):
    """Runs the tools in turn, and prints a line for each. Returns true if the bars are met."""
    times = {name: [] for name, _ in tools}
    memory = dict.fromkeys(times, 0)
    for turn in range(RUNS + 1):
        for name, words in tools:
            before()
            took, peak = run(words)
            # The first run of each tool warms caches and learns the host.
            if turn:
                times[name].append(took)
            memory[name] = max(memory[name], peak)
    median = {name: statistics.median(took) for name, took in times.items()}
    met = True
    for name, _ in tools:
        share = median[name] / median["rsync"]
        line = f"{title:<28} {name:<16} {median[name]:7.2f} s  "
        line += f"{min(times[name]):6.2f} to {max(times[name]):6.2f}  {memory[name]:5.0f} MiB"
        line += f"  {share:5.2f} of rsync's time"
        if name in bars:
            passed = share <= bars[name]
            met &= passed
            line += f", bar {bars[name]:.2f}{'' if passed else ': MISSED'}"
        print(line, flush=True)
    return met, memory


def both(source, target, names=("stock", "exec"), flags=()):
    words = {"stock": STOCK, "exec": EXEC}
    tools = [("rsync", [*RSYNC, *flags, f"{source}/", target])]
    return tools + [(f"longhaul {name}", [*words[name], *flags, source, target]) for name in names]


def prepare(files, folder):
    here, there = f"{BOX}/here", f"{BOX}/there"
    tree(here, files, folder)
    subprocess.run(["cp", "-a", here, there], check=True)
    return here, there


def unchanged():
    here, there = prepare(int(100_000 * SCALE), 200)
    bars = {"longhaul stock": 1.2, "longhaul exec": 1 / 3}
    up, _ = race("unchanged up", both(here, f"far:{there}"), bars)
    down, _ = race("unchanged down", both(f"far:{there}", here), bars)
    return up and down


def xattrs():
    """Equal trees whose extended attributes and access control lists are compared too."""
    here, there = prepare(int(100_000 * SCALE), 200)
    for root in (here, there):
        for folder, _, names in os.walk(root):
            for name in names:
                os.setxattr(f"{folder}/{name}", "user.origin", name.encode())
    tools = both(here, f"far:{there}", ["exec"], ["-A", "-X"])
    up, _ = race("unchanged, -A -X, up", tools, {"longhaul exec": 1})
    tools = both(f"far:{there}", here, ["exec"], ["-A", "-X"])
    down, _ = race("unchanged, -A -X, down", tools, {"longhaul exec": 1})
    return up and down


def changed():
    files, chance = int(14_400 * SCALE), random.Random(2)
    here, there = prepare(files, 50)
    bars = {"longhaul stock": 1, "longhaul exec": 0.5}
    count = min(100, files)
    up, _ = race(
        "100 files changed up",
        both(here, f"far:{there}"),
        bars,
        lambda: rewrite_files(here, files, 50, count, chance),
    )
    down, _ = race(
        "100 files changed down",
        both(f"far:{there}", here),
        bars,
        lambda: rewrite_files(there, files, 50, count, chance),
    )
    return up and down


def delta():
    size, chance = int((1 << 30) * SCALE), random.Random(3)
    os.makedirs(f"{BOX}/here")
    with open(f"{BOX}/here/image", "wb") as file:
        for _ in range(max(1, size >> 20)):
            file.write(chance.randbytes(1 << 20))
    here, there = f"{BOX}/here", f"{BOX}/there"
    subprocess.run(["cp", "-a", here, there], check=True)
    met = []
    for way, source, target, new in (
        ("up", here, f"far:{there}", here),
        ("down", f"far:{there}", here, there),
    ):
        tools = both(source, target, ["exec"])
        change = lambda new=new: rewrite_ranges(f"{new}/image", size, chance)
        met.append(race(f"a hundredth changed {way}", tools, {"longhaul exec": 0.7}, change)[0])
    return all(met)


def million():
    here, there = prepare(int(1_000_000 * SCALE), 200)
    met = True
    for way, source, target in (("up", here, f"far:{there}"), ("down", f"far:{there}", here)):
        bars = {"longhaul stock": 1, "longhaul exec": 1}
        passed, memory = race(f"a million, {way}", both(source, target), bars)
        met &= passed and max(peak for name, peak in memory.items() if name != "rsync") <= 300
    return met


for left in ("here", "there"):
    shutil.rmtree(f"{BOX}/{left}", ignore_errors=True)
sys.exit(0 if globals()[sys.argv[1]]() else 1)
