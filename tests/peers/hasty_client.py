"""Says all it has to say at once and leaves, as PHP's ssh2_scp_send does, for the tests: data, EOF and
CLOSE, and the end of the connection where it is told to, come in one segment."""

import socket
import struct
import sys

import paramiko


def string(value):
    return struct.pack(">I", len(value)) + value


def message(kind, body):
    return string(bytes([kind]) + body)


def sftp(path, data):
    """INIT, OPEN to write and create, WRITE, CLOSE and RENAME, whose answers nobody waits for."""
    new = path + b".new"
    handle = string(bytes(4))
    return b"".join(
        [
            message(1, struct.pack(">I", 3)),
            message(3, struct.pack(">I", 1) + string(new) + struct.pack(">II", 0x0A, 0)),
            message(6, struct.pack(">I", 2) + handle + struct.pack(">Q", 0) + string(data)),
            message(4, struct.pack(">I", 3) + handle),
            message(18, struct.pack(">I", 4) + string(new) + string(path)),
        ]
    )


def main(port, user, key, how, path, leave):
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
    transport = client.get_transport()
    channel = transport.open_session()
    data = b"all of it" * 1000
    if how == "scp":
        channel.exec_command("scp -t " + path)
        # Who leaves with something unread resets the connection, and takes along what has not left yet.
        channel.recv(1)
        said = b"C0644 %d x\n" % len(data) + data
    else:
        channel.invoke_subsystem("sftp")
        said = sftp(path.encode(), data)
    transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    channel.sendall(said)
    channel.close()
    if leave == "stay":
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        # The server has an answer to that once it has seen all of it.
        transport.open_session()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
