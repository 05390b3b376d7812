#!/usr/bin/env bash
# Fan-out of one file to several hosts behind one uplink: time against one host, bytes over the uplink
# against the file, and the same with one host killed at half. The hosts are sshds on the far side of a
# lab, where they reach each other without the uplink.
# FLAGS are further flags of cp, such as --through-here for copies from here to each host.
#   LONGHAUL=PROGRAM SIZE=MiB HOSTS=4 RATE=200Mbit RTT=40ms scripts/fan-out.sh
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(readlink -f "${LONGHAUL:-target/release/longhaul}")
size=${SIZE:-256} hosts=${HOSTS:-4} rate=${RATE:-200Mbit} rtt=${RTT:-40ms}
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
chmod 755 "$box"
ssh-keygen -q -t ed25519 -N '' -f "$box/host_key"
ssh-keygen -q -t ed25519 -N '' -f "$box/user_key"
cp "$box/user_key.pub" "$box/authorized_keys"
head -c "$((size << 20))" /dev/urandom > "$box/big"
mkdir -p "$box/bin" "$box/home"
printf '#!/bin/sh\nexport XDG_CACHE_HOME=%s/home XDG_STATE_HOME=%s/home\nexec %s "$@"\n' \
  "$box" "$box" "$program" > "$box/bin/longhaul"
chmod 755 "$box/bin/longhaul"
: > "$box/known_hosts"
: > "$box/config"
for ((n = 1; n <= hosts; n++)); do
  port=$((2200 + n))
  mkdir "$box/h$n"
  cat > "$box/sshd$n" <<CONFIG
Port $port
HostKey $box/host_key
AuthorizedKeysFile $box/authorized_keys
StrictModes no
UsePAM no
PidFile $box/sshd$n.pid
Subsystem sftp internal-sftp
SetEnv PATH=$box/bin:/usr/bin:/bin
CONFIG
  echo "[far]:$port $(cut -d' ' -f1,2 "$box/host_key.pub")" >> "$box/known_hosts"
  cat >> "$box/config" <<CONFIG
Host h$n
  HostName far
  Port $port
  User $(id -un)
  IdentityFile $box/user_key
  IdentitiesOnly yes
  UserKnownHostsFile $box/known_hosts
CONFIG
done
cat > "$box/far" <<FAR
#!/usr/bin/env bash
for n in \$(seq $hosts); do $(command -v sshd || echo /usr/sbin/sshd) -D -e -f $box/sshd\$n 2>> $box/log\$n & done
wait
FAR
chmod 755 "$box/far"
mkdir -p /run/sshd 2> /dev/null || true
lab() {
  rm -f "$box"/h[0-9]*/big "$box"/h[0-9]*/.big*
  "$program" lab --quiet --rate "$rate" --rtt "$rtt" --far "$box/far" --far-port 2201 --figures "$box/figures" -- "$@"
}
export XDG_CACHE_HOME=$box/home XDG_STATE_HOME=$box/home
python3 - "$box" "$program" "$hosts" "$size" <<'WRITE'
import sys
box, program, hosts, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) << 20
open(f"{box}/near.py", "w").write(f'''
import json, os, signal, subprocess, sys, time
targets = [f"h{{n}}:{box}/h{{n}}/" for n in range(1, int(sys.argv[1]) + 1)]
kill = int(sys.argv[2])
words = ["{program}", "cp", "--json", "-F", "{box}/config",
         *os.environ.get("FLAGS", "").split(), "{box}/big", *targets]
began = time.monotonic()
run = subprocess.Popen(words, stdout=subprocess.PIPE)
last = None
for line in run.stdout:
    event = json.loads(line)
    if event["event"] == "progress" and kill:
        host = [h for h in event.get("hosts", []) if h["host"] == f"h{{kill}}"]
        if host and host[0]["bytes_done"] > {size} // 2:
            parent = int(open(f"{box}/sshd{{kill}}.pid").read())
            tree, new = [parent], [parent]
            while new:
                new = [int(p) for n in new for p in open(f"/proc/{{n}}/task/{{n}}/children").read().split()]
                tree += new
            for pid in tree:
                try: os.kill(pid, signal.SIGKILL)
                except ProcessLookupError: pass
            kill = 0
    if event["event"] == "summary": last = event
code = run.wait()
took = time.monotonic() - began
hosts = [(h["host"], h["from"], h["outcome"]) for h in last.get("hosts", [])]
json.dump({{"took": took, "code": code, "hosts": hosts, "way": last["way"]}}, open("{box}/result", "w"))
''')
WRITE
run() { lab python3 "$box/near.py" "$@"; cat "$box/result"; echo; cp "$box/figures" "$box/figures-$1-$2"; }
run 1 0 && cp "$box/result" "$box/one"
run "$hosts" 0 && cp "$box/result" "$box/all"
for ((n = 1; n <= hosts; n++)); do cmp "$box/big" "$box/h$n/big"; done
run "$hosts" "${KILL:-2}" && cp "$box/result" "$box/killed"
for ((n = 1; n <= hosts; n++)); do [ "$n" = "${KILL:-2}" ] || cmp "$box/big" "$box/h$n/big"; done
python3 - "$box" "$hosts" "$size" "${KILL:-2}" <<'SHOW'
import json, sys
box, hosts, size, kill = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20, sys.argv[4]
one, all_, killed = (json.load(open(f"{box}/{name}")) for name in ("one", "all", "killed"))
def sent(name):
    figures = json.load(open(f"{box}/figures-{name}"))
    return figures["near_to_far.delivered.bytes"]
print(f"uplink: one host {sent('1-0') / size:.3f} times the file; {hosts} hosts"
      f" {sent(f'{hosts}-0') / size:.3f}; with host {kill} killed {sent(f'{hosts}-{kill}') / size:.3f}")
print(f"one host {one['took']:.1f} s; {hosts} hosts {all_['took']:.1f} s, {all_['took'] / one['took']:.2f} times;"
      f" host {kill} killed at half: {killed['took']:.1f} s, {killed['took'] / one['took']:.2f} times")
SHOW
