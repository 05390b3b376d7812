#!/usr/bin/env bash
# OpenSSH's own regression scripts for sftp, unchanged, with longhaul as the server:
#
#     scripts/openssh-regress.sh SOURCE_TREE [SCRIPT...]
#
# SOURCE_TREE is an unpacked OpenSSH (portable), which is only read and need not be built. The client is
# openssh/bin/sftp of LONGHAUL_PEERS, else the installed one; older than the scripts, it fails some of them
# with OpenSSH's own server too. A line for each script; the exit code is 1 where one fails otherwise than
# docs/design/0006-serve.md says.
set -euo pipefail
tree=$(realpath "${1:?the unpacked source of OpenSSH}")
shift
cd "$(dirname "$0")/.."
longhaul=${LONGHAUL_BIN:-$PWD/target/debug/longhaul}
[ -x "$longhaul" ] || { echo "$longhaul is not built: cargo build -p longhaul" >&2; exit 1; }
[ -f "$tree/regress/test-exec.sh" ] || { echo "$tree has no regress/test-exec.sh" >&2; exit 1; }
[ "$#" -gt 0 ] || set -- sftp sftp-cmds sftp-badcmds sftp-batch sftp-glob sftp-resume sftp-perm sftp-uri

# All that they write; what listens ends with it.
obj=$(mktemp -d "${TMPDIR:-/tmp}/longhaul-regress-XXXXXX")
clean() {
    [ ! -s "$obj/pidfile" ] || kill "$(cat "$obj/pidfile")" 2>/dev/null || true
    rm -rf "$obj"
}
trap clean EXIT

program() {
    cat >"$obj/$1"
    chmod 755 "$obj/$1"
}

# What OpenSSH's build makes of C.
program timestamp <<'TIMESTAMP'
#!/bin/sh
exec date +%s.%N
TIMESTAMP

# In place of sftp-server. Of its flags -R is ours too; lists of requests that are allowed or not (-p, -P)
# there are none here, and to do without them would be to allow what was forbidden.
program sftp-server <<WRAPPER
#!/bin/sh
while getopts el:Rp:P: flag; do
    case \$flag in
    R) access=--read-only ;;
    p | P) echo "no lists of requests" >&2 && exit 1 ;;
    esac
done
exec "$longhaul" serve --stdio \$access
WRAPPER

# In place of sshd, as far as sftp-uri.sh asks for one: its configuration in our words. Types of host keys
# that older clients and newer ones have besides are not known here.
program sshd <<WRAPPER
#!/bin/sh
for word; do
    case \$word in
    -t) exit 0 ;;
    "-oForceCommand=internal-sftp -d /") root="--root /" ;;
    -o*) echo "no \$word" >&2 && exit 1 ;;
    esac
done
value() {
    awk -v name="\$1" '\$1 == name { print \$2 }' "$obj/sshd_config"
}
"$longhaul" serve --listen 127.0.0.1:"\$(value Port)" --authorized-keys "$obj/authorized_keys_%u" \\
    \$(value HostKey | grep -Ev 'dss|mldsa' | sed 's/^/--host-key /') \$root >"$obj/listens" 2>"$obj/serve.log" </dev/null &
server=\$!
# sshd's own file is gone when it is.
{
    while kill -0 "\$server" 2>/dev/null; do sleep 0.1; done
    rm -f "$obj/pidfile"
} >/dev/null 2>&1 </dev/null &
for _ in \$(seq 100); do
    [ ! -s "$obj/listens" ] || break
    sleep 0.1
done
echo "\$server" >"$obj/pidfile"
WRAPPER

export TEST_SHELL=/bin/sh TEST_SSH_UNSAFE_PERMISSIONS=1
newest=${LONGHAUL_PEERS:-/nonexistent}/openssh/bin
[ -x "$newest/sftp" ] || newest=$(dirname "$(command -v sftp)")
export TEST_SSH_SFTP=$newest/sftp TEST_SSH_SSH=$newest/ssh TEST_SSH_SSHKEYGEN=$newest/ssh-keygen
export TEST_SSH_SFTPSERVER=$obj/sftp-server
export TEST_SSH_SSHD=$obj/sshd TEST_SSH_PORT=${PORT:-42$((RANDOM % 900 + 100))}
# Nothing of the account's own.
export HOME=$obj

wrong=0
for name; do
    begun=$SECONDS
    code=0
    timeout --kill-after=10 300 sh "$tree/regress/test-exec.sh" "$obj" "$tree/regress/$name.sh" \
        >"$obj/said" 2>&1 </dev/null || code=$?
    checks=$(grep -cE '^(test basic )?sftp[-a-z /]*: ' "$obj/said" || true)
    told="$checks checks, $((SECONDS - begun)) s"
    # Without the lists no client comes far; that those who are to be refused are says nothing then.
    lists='^whitelisted [a-z]* failed$|^postcondition check failed: [a-z]* whitelisted$'
    usual='^sftp permissions: |^cmp: .*: No such file or directory$|^failed sftp permissions$'
    others=$(grep -Ev "$lists|$usual" "$obj/said" || true)
    if [ "$code" = 0 ] && [ "$checks" != 0 ]; then
        echo "$name: passes ($told)"
    elif [ "$name" = sftp-perm ] && [ "$code" = 1 ] && [ "$checks" != 0 ] && [ -z "$others" ]; then
        only=$(grep -c ': read-only' "$obj/said")
        echo "$name: passes in its $only checks of -R; there are no lists of requests here ($told)"
    else
        echo "$name: FAILS with $code ($told)"
        sed 's/^/    /' "$obj/said"
        [ ! -s "$obj/serve.log" ] || sed 's/^/    /' "$obj/serve.log"
        wrong=1
    fi
done
exit "$wrong"
