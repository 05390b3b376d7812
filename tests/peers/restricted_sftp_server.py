"""An SFTP server of version 3 with the restrictions of servers that are not OpenSSH's.

Words on the command line say which: REFUSED=CODE for a request, by name, and what RULES lists.
It serves the machine's files, as whoever runs it.
"""

import fnmatch
import os
import stat
import struct
import sys
import unicodedata

OK, EOF, MISSING, DENIED, FAILURE, UNSUPPORTED = 0, 1, 2, 3, 4, 8
REQUESTS = {
    "OPEN": 3, "CLOSE": 4, "READ": 5, "WRITE": 6, "LSTAT": 7, "FSTAT": 8, "SETSTAT": 9,
    "FSETSTAT": 10, "OPENDIR": 11, "READDIR": 12, "REMOVE": 13, "MKDIR": 14, "RMDIR": 15,
    "REALPATH": 16, "STAT": 17, "RENAME": 18, "READLINK": 19, "SYMLINK": 20,
}
RULES = {
    "in-order": "WRITE takes only the next byte, as into an object store",
    "lock": "a file that is open cannot be opened",
    "fetched-once": "a file that was read is removed when it is closed",
    "no-excl": "OPEN does not know the flag EXCL",
    "only": "=PATTERN of names that may be created",
    "except": "=NAME of a folder in which any name may be created",
    "code": "=CODE in answer to a name that may not",
    "folds": "names that differ in case or normalization are one, as on macOS and Windows",
}
rules, refused = {}, {}
for word in sys.argv[1:]:
    key, _, value = word.partition("=")
    if key in REQUESTS:
        refused[REQUESTS[key]] = int(value)
    else:
        assert key in RULES, key
        rules[key] = value
handles, count = {}, 0


def receive(length):
    data = b""
    while len(data) < length:
        piece = sys.stdin.buffer.read(length - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


def send(kind, body):
    sys.stdout.buffer.write(struct.pack(">IB", len(body) + 1, kind) + body)
    sys.stdout.buffer.flush()


def string(data):
    return struct.pack(">I", len(data)) + data


def status(request, code):
    send(101, request + struct.pack(">I", code) + string(b"") + string(b""))


class Fields:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form=">I"):
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def string(self):
        length = self.number()
        self.at += length
        return self.data[self.at - length : self.at]

    def path(self):
        return folded(self.string()) if "folds" in rules else self.string()

    def attributes(self):
        flags, found = self.number(), {}
        if flags & 1:
            found["size"] = self.number(">Q")
        if flags & 2:
            found["owner"] = (self.number(), self.number())
        if flags & 4:
            found["mode"] = self.number()
        if flags & 8:
            found["times"] = (self.number(), self.number())
        return found


def key(name):
    return unicodedata.normalize("NFC", name.decode(errors="surrogateescape")).casefold()


def folded(path):
    """The path with each name as the folder there has it."""
    found = b"/" if path.startswith(b"/") else b"."
    for name in path.split(b"/"):
        if name not in (b"", b".", b".."):
            there = os.listdir(found) if os.path.isdir(found) else []
            name = next((other for other in there if key(other) == key(name)), name)
        found = os.path.join(found, name)
    return found


def attributes(found):
    owner = struct.pack(">II", found.st_uid, found.st_gid)
    times = struct.pack(">II", int(found.st_atime), int(found.st_mtime))
    size = struct.pack(">Q", found.st_size)
    return struct.pack(">I", 15) + size + owner + struct.pack(">I", found.st_mode) + times


def change(what, wanted):
    if "size" in wanted:
        os.truncate(what, wanted["size"])
    if "owner" in wanted:
        os.chown(what, *wanted["owner"])
    if "mode" in wanted:
        os.chmod(what, stat.S_IMODE(wanted["mode"]))
    if "times" in wanted:
        os.utime(what, wanted["times"])


def give(request, handle):
    global count
    count += 1
    name = b"handle %d" % count
    handles[name] = handle
    send(102, request + string(name))


def open_file(request, fields):
    path, flags, wanted = fields.path(), fields.number(), fields.attributes()
    name = os.path.basename(path).decode()
    if flags & 0x20 and "no-excl" in rules:
        return status(request, UNSUPPORTED)
    folder = os.path.basename(os.path.dirname(path)).decode()
    checked = "only" in rules and folder != rules.get("except")
    if flags & 8 and checked and not fnmatch.fnmatchcase(name, rules["only"]):
        return status(request, int(rules.get("code", DENIED)))
    if "lock" in rules and any(handle["path"] == path for handle in handles.values()):
        return status(request, FAILURE)
    how = [0, os.O_RDONLY, os.O_WRONLY, os.O_RDWR][flags & 3]
    for bit, flag in ((4, os.O_APPEND), (8, os.O_CREAT), (0x10, os.O_TRUNC), (0x20, os.O_EXCL)):
        how |= flag if flags & bit else 0
    file = os.open(path, how, stat.S_IMODE(wanted.get("mode", 0o666)))
    give(request, {"path": path, "file": file, "next": 0, "reads": not flags & 2})


def close(request, name):
    handle = handles.pop(name)
    if "file" in handle:
        os.close(handle["file"])
        if "fetched-once" in rules and handle["reads"]:
            os.unlink(handle["path"])
    status(request, OK)


def write(request, fields):
    handle, offset, data = handles[fields.string()], fields.number(">Q"), fields.string()
    if "in-order" in rules and offset != handle["next"]:
        return status(request, FAILURE)
    os.pwrite(handle["file"], data, offset)
    handle["next"] = offset + len(data)
    status(request, OK)


def answer(kind, request, fields):
    if kind in refused:
        return status(request, refused[kind])
    if kind == 3:
        return open_file(request, fields)
    if kind == 4:
        return close(request, fields.string())
    if kind == 5:
        handle, offset, length = handles[fields.string()], fields.number(">Q"), fields.number()
        data = os.pread(handle["file"], min(length, 65536), offset)
        return send(103, request + string(data)) if data else status(request, EOF)
    if kind == 6:
        return write(request, fields)
    if kind in (7, 17):
        look = os.lstat if kind == 7 else os.stat
        return send(105, request + attributes(look(fields.path())))
    if kind == 8:
        return send(105, request + attributes(os.fstat(handles[fields.string()]["file"])))
    if kind in (9, 10):
        what = fields.path() if kind == 9 else fields.string()
        change(what if kind == 9 else handles[what]["file"], fields.attributes())
    elif kind == 11:
        path = fields.path()
        return give(request, {"path": path, "names": [b".", b".."] + os.listdir(path)})
    elif kind == 12:
        handle = handles[fields.string()]
        names, handle["names"] = handle["names"], []
        entries = b"".join(
            string(name) + string(name) + attributes(os.lstat(os.path.join(handle["path"], name)))
            for name in names
        )
        count = struct.pack(">I", len(names))
        return send(104, request + count + entries) if names else status(request, EOF)
    elif kind == 13:
        os.unlink(fields.path())
    elif kind == 14:
        os.mkdir(fields.path(), stat.S_IMODE(fields.attributes().get("mode", 0o777)))
    elif kind == 15:
        os.rmdir(fields.path())
    elif kind == 16:
        path = os.path.realpath(fields.path() or b".")
        name = string(path) + string(path) + struct.pack(">I", 0)
        return send(104, request + struct.pack(">I", 1) + name)
    elif kind == 18:
        old, new = fields.path(), fields.path()
        if os.path.lexists(new):
            return status(request, FAILURE)
        os.rename(old, new)
    elif kind == 19:
        path = os.readlink(fields.path())
        name = string(path) + string(path) + struct.pack(">I", 0)
        return send(104, request + struct.pack(">I", 1) + name)
    elif kind == 20:
        points_to, path = fields.string(), fields.path()
        os.symlink(points_to, path)
    else:
        return status(request, UNSUPPORTED)
    status(request, OK)


def main():
    receive(struct.unpack(">I", receive(4))[0])
    send(2, struct.pack(">I", 3))
    while True:
        packet = receive(struct.unpack(">I", receive(4))[0])
        kind, request = packet[0], packet[1:5]
        try:
            answer(kind, request, Fields(packet[5:]))
        except (FileNotFoundError, NotADirectoryError):
            status(request, MISSING)
        except PermissionError:
            status(request, DENIED)
        except OSError:
            status(request, FAILURE)


main()
