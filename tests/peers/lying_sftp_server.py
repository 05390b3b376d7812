#!/usr/bin/env python3
"""An SFTP server over standard input and output that lies, for tests of the client.

LIE says how:
  names    the directory lists names that lead out of it
  link     the directory lists a name first as a symlink to $OUTSIDE, then as a directory
  linkfile the same, then as a file
  rootlink the directory lists x as a symlink to $OUTSIDE; x itself, a file, is looked at later
  rootdir  the same, and x is a directory with a file
  stranded no posix-rename; what is uploaded replaces a file, which is moved aside; the server dies
           at the rename of the new one
  expand   expand-path@openssh.com tells of another place (also -pattern, -parent and -relative)
  other    REALPATH and the listing tell of another file than the one asked for
  escape   names and error texts steer the terminal
  sizes    files are longer and shorter than they are said to be
  endless  a directory that contains itself, without end
  long     the directory lists names that are longer than Linux permits
"""
import os
import struct
import sys

LIE = os.environ["LIE"]
OUTSIDE = os.environ.get("OUTSIDE", "/nowhere").encode()
STEER = b"\x1b[2J\x1b]0;title\x07\xc2\x9b31m\xe2\x80\xae\r"
DIRECTORY, FILE, LINK = 0o040755, 0o100644, 0o120777
handles = {}


def receive(n):
    data = sys.stdin.buffer.read(n)
    if len(data) < n:
        sys.exit(0)
    return data


def string(data):
    return struct.pack(">I", len(data)) + data


def send(kind, request, payload):
    packet = bytes([kind]) + request + payload
    sys.stdout.buffer.write(struct.pack(">I", len(packet)) + packet)
    sys.stdout.buffer.flush()


def attributes(mode, size=5):
    return struct.pack(">IQI", 5, size, mode)


def status(request, code, text=b""):
    send(101, request, struct.pack(">I", code) + string(text) + string(b""))


def entry(name, mode, size=5):
    return string(name) + string(b"-rw-r--r-- 1 u g 5 " + name) + attributes(mode, size)


def listing():
    if LIE == "names":
        names = [b"../evil", b"..", b".", b"", b"/tmp/evil", b"a/b", b"../../x/evil", b"nul\0evil", b"fine"]
        entries = [entry(name, FILE) for name in names]
        entries += [entry(name, DIRECTORY) for name in [b"../evildir", b"..", b"/evildir"]]
        return entries + [entry(b"../evillink", LINK)]
    if LIE == "link":
        return [entry(b"x", LINK), entry(b"x", DIRECTORY)]
    if LIE == "linkfile":
        return [entry(b"x", LINK), entry(b"x", FILE)]
    if LIE in ("rootlink", "rootdir"):
        return [entry(b"x", LINK)]
    if LIE == "escape":
        return [entry(STEER + b"name", FILE), entry(STEER + b"/name", FILE)]
    if LIE == "sizes":
        return [entry(b"short", FILE, 100), entry(b"long", FILE, 2), entry(b"huge", FILE, 2**64 - 1)] + [
            entry(b"huge%d" % n, FILE, size) for n, size in enumerate((2**64 - 1, 2**64 - 8, 2**63))
        ]
    if LIE == "endless":
        return [entry(b"d" * 200, DIRECTORY)]
    if LIE == "long":
        long = [entry(b"f" * 256, FILE), entry(b"d" * 300, DIRECTORY), entry(b"l" * 256, LINK)]
        return long + [entry(b"fine", FILE)]
    return [entry(b"other", FILE)]


def below(path):
    """What a directory of a lie has in it."""
    if LIE in ("link", "rootdir") and path.endswith(b"x"):
        return [entry(b"evil", FILE)]
    if LIE == "long" and path.endswith((b"dd", b"ll")):
        return [entry(b"fine", FILE)]
    return listing()


def main():
    length = struct.unpack(">I", receive(4))[0]
    receive(length)
    expands = string(b"expand-path@openssh.com") + string(b"1") if LIE.startswith("expand") else b""
    send(2, struct.pack(">I", 3), expands)
    linked, later, waiting = False, [], []
    while True:
        length = struct.unpack(">I", receive(4))[0]
        packet = receive(length)
        kind, request, rest = packet[0], packet[1:5], packet[5:]
        name = b""
        if len(rest) >= 4:
            size = struct.unpack(">I", rest[:4])[0]
            name, rest = rest[4 : 4 + size], rest[4 + size :]
        is_file = os.path.basename(name) in (
            b"file", b"fine", b"evil", b"short", b"long", b"huge", b"other"
        ) or b"name" in name or b"huge" in name or name.endswith(b"ff") or (LIE in ("linkfile", "rootlink") and name.endswith(b"x"))
        if LIE == "stranded" and kind in (6, 9, 13):  # WRITE, SETSTAT, REMOVE
            status(request, 0)
        elif LIE == "stranded" and kind in (10, 18):  # FSETSTAT, RENAME
            size = struct.unpack(">I", rest[:4])[0] if kind == 18 else 0
            aside = rest[4 : 4 + size].endswith(b".longhaul")
            if kind == 18 and waiting:
                sys.exit(1)
            # Something stands there, until it is moved aside.
            status(request, 4 if kind == 18 and not aside else 0)
            if aside:
                waiting.append(request)
        elif LIE == "stranded" and kind in (7, 17):
            send(105, request, attributes(FILE))
        elif LIE.startswith("root") and kind == 17 and name.endswith(b"x") and not linked:
            # Looked at once the symlink has been asked for.
            waiting.append(request)
        elif kind in (3, 11):  # OPEN, OPENDIR
            if LIE == "escape" and kind == 3:
                status(request, 4, STEER + b"failure")
                continue
            handle = b"h%d" % len(handles)
            handles[handle] = [kind, name, False]
            send(102, request, string(handle))
        elif kind == 4:  # CLOSE
            status(request, 0)
        elif kind == 5:  # READ
            offset = struct.unpack(">Q", rest[:8])[0]
            if offset >= 5:
                status(request, 1)
            else:
                send(103, request, string(b"evil\n"[offset:]))
        elif kind == 12:  # READDIR
            state = handles[name]
            entries = below(state[1])
            if LIE.startswith("link"):
                batch, state[2] = int(state[2]), state[2] + 1
                entries = entries[batch : batch + 1]
                if batch > 0 and handles[name][1].endswith(b"dir") and not linked:
                    # Answered when the client has asked for the symlink of the first part.
                    later.append((request, entries))
                    continue
            elif state[2]:
                entries = []
            else:
                state[2] = True
            if not entries:
                status(request, 1)
            else:
                send(104, request, struct.pack(">I", len(entries)) + b"".join(entries))
        elif kind in (7, 17, 8):  # LSTAT, STAT, FSTAT
            if kind == 8 and handles.get(name, [0])[0] == 3:
                is_file = True
            of = handles[name][1] if kind == 8 else name
            size = 2**64 - 1 if LIE == "sizes" and b"huge" in of else 5
            send(105, request, attributes(FILE if is_file else DIRECTORY, size))
        elif kind == 19:  # READLINK
            send(104, request, struct.pack(">I", 1) + entry(OUTSIDE, LINK))
        elif kind == 200 and LIE.startswith("expand"):
            homes = {"expand": b"/x/.ssh", "expand-pattern": b"/x/*", "expand-parent": b"/x/..", "expand-relative": b"x"}
            send(104, request, struct.pack(">I", 1) + entry(homes[LIE], FILE))
        elif kind == 16:  # REALPATH
            real = b"/../../elsewhere/other" if LIE == "other" else b"/home/" + name
            send(104, request, struct.pack(">I", 1) + entry(real, FILE))
        else:
            status(request, 8, b"unsupported")
        if kind == 19 and LIE.startswith("root"):
            linked = True
            for request in waiting:
                send(105, request, attributes(FILE if LIE == "rootlink" else DIRECTORY))
            waiting = []
        if kind in (17, 19) and LIE.startswith("link") and name.endswith(b"x"):
            linked = True
            for request, entries in later:
                if entries:
                    send(104, request, struct.pack(">I", len(entries)) + b"".join(entries))
                else:
                    status(request, 1)
            later = []


main()
