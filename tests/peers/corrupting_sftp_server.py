#!/usr/bin/env python3
"""sftp-server with a fault between it and the client, for tests of --verify.

HOW says which:
  write   a byte of what is written is flipped, the first time only
  always  the same in every copy
  read    a byte of what is read is flipped, the first time only
  source  the file $SOURCE changes once its middle was read, the first time only
MARK is a file that remembers the first time. SERVER is the real server.
"""
import os
import struct
import subprocess
import sys
import threading

HOW, MARK = os.environ["HOW"], os.environ["MARK"]
# Somewhere within a file that is large enough to be worth it.
AT = 1_500_000
server = subprocess.Popen([os.environ["SERVER"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
lock = threading.Lock()
reads = {}


def first():
    """Once among all servers of a test, which may be several at a time."""
    try:
        os.close(os.open(MARK, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def packets(stream):
    while True:
        head = stream.read(4)
        if len(head) < 4:
            return
        body = stream.read(struct.unpack(">I", head)[0])
        yield bytearray(body)


def send(stream, body):
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


def flip(body, data, offset):
    """Flips the byte at AT, where `body` has it from `data` on."""
    at = data + AT - offset
    if data <= at < len(body):
        if HOW == "always" or first():
            body[at] ^= 1


def to_server():
    for body in packets(sys.stdin.buffer):
        kind = body[0]
        if kind in (5, 6):  # READ, WRITE
            handle = struct.unpack(">I", body[5:9])[0]
            offset = struct.unpack(">Q", body[9 + handle : 17 + handle])[0]
            if kind == 6 and HOW in ("write", "always"):
                flip(body, 21 + handle, offset)
            if kind == 5:
                with lock:
                    reads[bytes(body[1:5])] = offset
        send(server.stdin, body)
    server.stdin.close()


threading.Thread(target=to_server, daemon=True).start()
for body in packets(server.stdout):
    if body[0] == 103 and HOW in ("read", "source"):
        with lock:
            offset = reads.pop(bytes(body[1:5]), None)
        if offset is not None and HOW == "read":
            flip(body, 9, offset)
        elif offset is not None and 0 <= AT - offset < len(body) - 9 and first():
            # With the time it had: what opens it later shall not notice by that.
            before = os.stat(os.environ["SOURCE"])
            with open(os.environ["SOURCE"], "r+b") as source:
                source.seek(AT)
                source.write(b"changed")
            os.utime(os.environ["SOURCE"], ns=(before.st_atime_ns, before.st_mtime_ns))
    send(sys.stdout.buffer, body)
