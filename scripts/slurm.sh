#!/usr/bin/env bash
# The shards of a plan on a real Slurm: munge, slurmctld and several slurmd in a network
# namespace of this machine, an sshd as the target, tasks that are killed at random moments and
# requeued. As root; leaves nothing behind. Needs slurmctld, slurmd, slurm-client, munge and
# openssh-server of Debian; without them it says so and ends with 0.
#   LONGHAUL=PROGRAM FILES=200000 SHARDS=20 KILLS=30 SEED=1 scripts/slurm.sh
set -euo pipefail
cd "$(dirname "$0")/.."
files=${FILES:-20000}
shards=${SHARDS:-20}
kills=${KILLS:-30}
nodes=${NODES:-4}
RANDOM=${SEED:-1}
program=$(readlink -f "${LONGHAUL:-target/release/longhaul}")

PATH=$PATH:/usr/sbin
for tool in munged slurmctld slurmd sbatch sshd nft python3; do
    command -v "$tool" >/dev/null || {
        echo "skipped: $tool is missing: apt-get install slurmctld slurmd slurm-client munge openssh-server nftables"
        exit 0
    }
done
[ "$(id -u)" = 0 ] || {
    echo "skipped: this needs root, for munge and slurmd"
    exit 0
}
if [ "${1-}" != inside ]; then
    # A namespace of its own: no port of this machine, and nothing outlives it.
    exec unshare --net --mount --pid --fork --mount-proc --kill-child bash "$0" inside
fi

box=$(mktemp -d /tmp/longhaul-slurm.XXXXXX)
trap '[ -z "${KEEP-}" ] && rm -rf "$box"' EXIT
chmod 755 "$box"
ip link set lo up
# Slurm resolves addresses only if the machine has one besides those of the loopback.
ip link add near type veth peer name far
ip address add 10.77.0.1/24 dev near
ip link set near up
ip link set far up
mount -t tmpfs -o size=64m longhaul-slurm /etc/slurm 2>/dev/null || { mkdir -p /etc/slurm; mount -t tmpfs -o size=64m longhaul-slurm /etc/slurm; }
mkdir -p "$box"/{state,spool,log,bin,ssh,munge,from}
install -m 755 "$program" "$box/bin/longhaul"
export PATH=$box/bin:$PATH

# munge, with a key and a socket of its own.
head -c 1024 /dev/urandom >"$box/munge/key"
chmod 400 "$box/munge/key"
chmod 711 "$box/munge"
munged --foreground --force --key-file "$box/munge/key" --socket "$box/munge/socket" \
    --pid-file "$box/munge/pid" --seed-file "$box/munge/seed" --log-file "$box/log/munged" &

{
    echo "ClusterName=box"
    echo "SlurmctldHost=$(hostname)(10.77.0.1)"
    echo "SlurmUser=root"
    echo "AuthType=auth/munge"
    echo "AuthInfo=socket=$box/munge/socket"
    echo "StateSaveLocation=$box/state"
    echo "SlurmdSpoolDir=$box/spool/%n"
    echo "SlurmctldPidFile=$box/slurmctld.pid"
    echo "SlurmdPidFile=$box/slurmd-%n.pid"
    echo "SlurmctldLogFile=$box/log/slurmctld"
    echo "SlurmdLogFile=$box/log/slurmd-%n"
    echo "ProctrackType=proctrack/linuxproc"
    echo "TaskPlugin=task/none"
    echo "SelectType=select/linear"
    echo "ReturnToService=2"
    echo "SchedulerParameters=sched_interval=1,batch_sched_delay=0,requeue_delay=0"
    echo "MinJobAge=600"
    echo "KillWait=5"
    echo "SlurmdTimeout=30"
    echo "JobAcctGatherType=jobacct_gather/none"
    for n in $(seq "$nodes"); do
        echo "NodeName=n$n NodeHostname=$(hostname) NodeAddr=10.77.0.1 Port=$((17000 + n)) CPUs=1"
    done
    echo "PartitionName=all Nodes=n[1-$nodes] Default=YES State=UP MaxTime=INFINITE"
} >/etc/slurm/slurm.conf
export SLURM_CONF=/etc/slurm/slurm.conf

# The target: an sshd, with a counter of the bytes that it receives.
nft add table inet box
nft add chain inet box in '{ type filter hook input priority 0; }'
nft add rule inet box in tcp dport 17022 counter
received() { nft list chain inet box in | sed -n 's/.*dport 17022 counter packets [0-9]* bytes \([0-9]*\).*/\1/p'; }
ssh-keygen -q -t ed25519 -N '' -f "$box/ssh/host"
ssh-keygen -q -t ed25519 -N '' -f "$box/ssh/id"
cp "$box/ssh/id.pub" "$box/ssh/authorized"
mkdir -p /run/sshd
/usr/sbin/sshd -D -e -f /dev/null -p 17022 -h "$box/ssh/host" -o ListenAddress=127.0.0.1 \
    -o "AuthorizedKeysFile=$box/ssh/authorized" -o StrictModes=no -o UsePAM=no \
    -o PermitRootLogin=yes -o MaxStartups=1000 -o "PidFile=$box/sshd.pid" \
    -o Subsystem="sftp internal-sftp" 2>"$box/log/sshd" &
echo "[127.0.0.1]:17022 $(cut -d' ' -f1,2 "$box/ssh/host.pub")" >"$box/ssh/known"
{
    echo "Host target"
    echo "HostName 127.0.0.1"
    echo "Port 17022"
    echo "User root"
    echo "IdentityFile $box/ssh/id"
    echo "IdentitiesOnly yes"
    echo "UserKnownHostsFile $box/ssh/known"
} >"$box/ssh/config"
# The job script calls longhaul by its name; the site's configuration names the hosts.
mv "$box/bin/longhaul" "$box/bin/longhaul.real"
cat >"$box/bin/longhaul" <<WRAPPER
#!/bin/sh
case "\$1 \$2" in
"plan status") exec $box/bin/longhaul.real "\$@" ;;
esac
first=\$1
shift
exec $box/bin/longhaul.real "\$first" "\$@" -F $box/ssh/config
WRAPPER
chmod 755 "$box/bin/longhaul"
export HOME=$box XDG_STATE_HOME=$box/user-state XDG_CACHE_HOME=$box/cache

python3 - "$box/from" "$files" <<'TREE'
import os, random, sys
root, files = sys.argv[1], int(sys.argv[2])
random.seed(7)
block = os.urandom(1 << 20)
for n in range(files):
    folder = f"{root}/{n // 2000:03d}/{n // 200 % 10}"
    if n % 200 == 0:
        os.makedirs(folder)
    size = random.randrange(200_000, 2_000_000) if n % 500 == 0 else random.randrange(2_000, 12_000)
    start = random.randrange(1 << 19)
    with open(f"{folder}/file-{n}", "wb") as f:
        f.write(block[start:start + size] if size <= 1 << 19 else (block * 2)[:size])
TREE
total=$(find "$box/from" -type f -printf '%s\n' | awk '{ s += $1 } END { print s }')

sleep 1
slurmctld -D >/dev/null 2>&1 &
declare -A daemons
start_node() {
    slurmd -D -N "n$1" >/dev/null 2>&1 &
    daemons[$1]=$!
}
for n in $(seq "$nodes"); do start_node "$n"; done
for _ in $(seq 60); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = "$nodes" ] && break
    sleep 1
done
sinfo

submit() {
    longhaul plan "$box/from" "target:$box/to" --shards "$shards" -o "$box/plan"
    (cd "$box/log" && LONGHAUL_TASKS=$nodes LONGHAUL_RUNS=100 \
        "$OLDPWD/packaging/slurm/longhaul-submit" --cpus-per-task=1 "$box/plan")
}
# Waits until no job is left.
finish() {
    for _ in $(seq 900); do
        [ -z "$(squeue -h -o %i)" ] && return
        # A task whose run ended while its node was down is held by the scheduler.
        for held in $(squeue -h -t PD -o '%i %r' | awk '/[Hh]eld|launch/ { print $1 }'); do
            scontrol release "$held" 2>/dev/null || true
        done
        sleep 1
    done
    squeue
    exit 1
}
# The tree without kills, to know what the protocol takes.
submit
finish
smooth=$(received)
diff -r "$box/from" "$box/to"
rm -rf "$box/to" "$box/plan" "$box"/log/slurm-*.out "$box/cache" "$box/user-state"

began=$(date +%s)
before=$(received)
job=$(submit | tail -1)
echo "job $job"

done_shards() { ls "$box/plan" | sed -n 's/\.lease-.*//p' | sort -u | while read -r shard; do
    newest=$(ls -v "$box/plan/$shard".lease-* | tail -1)
    grep -l '^state done' "$newest" 2>/dev/null || true
done | wc -l; }

killed=0
while [ "$killed" -lt "$kills" ]; do
    [ "$(done_shards)" = "$shards" ] && break
    sleep "$((RANDOM % 2)).$((RANDOM % 10))"
    case $((RANDOM % 5)) in
    0) # The scheduler takes a task away, and starts it again.
        task=$(squeue -h -j "$job" -t R -o %i | shuf -n1 --random-source=<(yes $RANDOM))
        [ -n "$task" ] && scontrol requeue "$task" && killed=$((killed + 1)) || true ;;
    1) # A step's daemon dies with the task's shell, and the worker stays; a slurmd starts anew.
        victim=$(pgrep -f "slurmstepd: .*" | shuf -n1 --random-source=<(yes $RANDOM) || true)
        [ -z "$victim" ] && continue
        kill -9 $(pgrep -P "$victim" -d ' ') "$victim" 2>/dev/null || true
        n=$((RANDOM % nodes + 1))
        kill -9 "${daemons[$n]}" 2>/dev/null || true
        wait "${daemons[$n]}" 2>/dev/null || true
        start_node "$n"
        killed=$((killed + 1)) ;;
    *) # A worker dies.
        victim=$(pgrep -f "longhaul.real cp" | shuf -n1 --random-source=<(yes $RANDOM) || true)
        [ -n "$victim" ] && kill -9 "$victim" && killed=$((killed + 1)) || true ;;
    esac
done
echo "$killed kills"

finish
ended=$(date +%s)
sent=$(($(received) - before))
longhaul plan status "$box/plan"
longhaul plan verify "$box/plan"
diff -r "$box/from" "$box/to"
strays=$(find "$box/to" -name '.*longhaul*' | wc -l)
summary=$(cat "$box"/log/slurm-*.out | grep -c "as planned" || true)

awk -v sent="$sent" -v smooth="$smooth" -v total="$total" -v kills="$killed" -v files="$files" -v shards="$shards" \
    -v time="$((ended - began))" -v strays="$strays" 'BEGIN {
    printf "%d files, %d bytes in %d shards: %d kills, %.2f %% sent twice, %d s, %d strays\n",
        files, total, shards, kills, 100 * (sent - smooth) / total, time, strays
    # Each kill may cost what was in flight, and the lookups of the next worker.
    exit !(smooth >= total && sent - smooth <= kills * 8000000)
}'
[ "$strays" = 0 ] || { find "$box/to" -name '.*longhaul*' | head; exit 1; }
[ "$summary" = 1 ] || { echo "the summary job did not prove the tree"; exit 1; }
