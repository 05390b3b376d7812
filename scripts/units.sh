#!/usr/bin/env bash
# The units of packaging/ under a real systemd, which systemd-nspawn boots in a copy of this machine:
# socket activation, reload, and a restart while a file is being sent. As root; nothing outside of the
# copy is changed. Needs systemd-container and target/release/longhaul.
set -euo pipefail
cd "$(dirname "$0")/.."
box=$(mktemp -d)
mount -t tmpfs -o size=1g longhaul-box "$box"
trap 'umount -R "$box/root" 2>/dev/null || true; umount "$box"; rmdir "$box"' EXIT
mkdir "$box/above" "$box/work" "$box/root"
mount -t overlay -o "lowerdir=/,upperdir=$box/above,workdir=$box/work" longhaul-box "$box/root"
root=$box/root
install -m 755 target/release/longhaul "$root/usr/bin/longhaul"
install -d "$root/etc/longhaul" "$root/root"
install -m 644 packaging/*.toml "$root/etc/longhaul/"
install -m 644 packaging/*.service packaging/*.socket "$root/etc/systemd/system/"
chroot "$root" useradd --create-home --password '*' longhaul-box
install -d -m 700 "$root/home/longhaul-box/.ssh"
rm -f "$root"/etc/ssh/ssh_host_ed25519_key{,.pub}
ssh-keygen -q -t ed25519 -N '' -f "$root/etc/ssh/ssh_host_ed25519_key"
ssh-keygen -q -t ed25519 -N '' -f "$root/root/box-key"
install -m 600 "$root/root/box-key.pub" "$root/home/longhaul-box/.ssh/authorized_keys"
chroot "$root" chown -R longhaul-box: /home/longhaul-box
cat >"$root/root/box.sh" <<'INSIDE'
set -eu
trap 'echo "exit $?" >>/root/box.log; systemctl poweroff --force' EXIT
exec >/root/box.log 2>&1
systemctl start systemd-user-sessions
rm -f /run/nologin
systemctl start longhaul-serve.socket
awk '{print "[127.0.0.1]:2022", $1, $2}' /etc/ssh/ssh_host_ed25519_key.pub >/root/box-known
head -c 30000000 /dev/urandom >/root/box-file
send() {
    longhaul cp -q -i /root/box-key -o UserKnownHostsFile=/root/box-known -P 2022 "$@"
    cmp /root/box-file "/home/longhaul-box/${!###*:}"
}
send /root/box-file longhaul-box@127.0.0.1:activated
echo "ok: the first client starts the server"
systemctl reload longhaul-serve.service
send /root/box-file longhaul-box@127.0.0.1:reloaded
echo "ok: reloaded"
send --limit 10MB /root/box-file longhaul-box@127.0.0.1:drained &
sleep 1
first=$(systemctl show -P MainPID longhaul-serve.service)
systemctl restart longhaul-serve.service
wait $!
test "$first" != "$(systemctl show -P MainPID longhaul-serve.service)"
send /root/box-file longhaul-box@127.0.0.1:restarted
echo "ok: restarted while a file was being sent, which arrived whole"
systemctl start longhaul-relay.service
systemctl reload longhaul-relay.service
systemctl is-active --quiet longhaul-relay.service
systemctl stop longhaul-relay.service
echo "ok: the relay starts, reloads and stops"
INSIDE
cat >"$root/etc/systemd/system/box.service" <<'UNIT'
[Service]
Type=oneshot
TimeoutStartSec=60
ExecStart=/bin/bash /root/box.sh
UNIT
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=box.service\nAllowIsolate=yes\n' \
    >"$root/etc/systemd/system/box.target"
timeout 120 systemd-nspawn --quiet --register=no --keep-unit --private-network -D "$root" \
    --boot systemd.unit=box.target </dev/null >"$box/console" 2>&1 || true
cat "$root/root/box.log"
grep -qx 'exit 0' "$root/root/box.log"
