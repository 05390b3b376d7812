"""An SSH server with SFTP around paramiko, for the tests. Serves the whole file system."""

import argparse
import base64
import logging
import os
import socket
import sys
import threading

import paramiko
from paramiko import SFTPAttributes, SFTPHandle, SFTPServer, SFTPServerInterface


class Gate(paramiko.ServerInterface):
    """Lets in whoever has done all the steps of --auth in their order."""

    def __init__(self, options):
        self.options = options
        self.steps = options.auth.split(",")
        self.key_known = False

    def get_allowed_auths(self, username):
        return self.steps[-1] if self.key_known else self.steps[0]

    def check_auth_publickey(self, username, key):
        if self.steps[0] != "publickey" or key.get_base64() not in self.options.authorized:
            return paramiko.AUTH_FAILED
        # Also asked for the query without a signature: the test of the order is Go's server.
        self.key_known = True
        if len(self.steps) > 1:
            return paramiko.AUTH_PARTIALLY_SUCCESSFUL
        return paramiko.AUTH_SUCCESSFUL

    def check_auth_password(self, username, password):
        if self.steps == ["password"] and password == self.options.password:
            return paramiko.AUTH_SUCCESSFUL
        return paramiko.AUTH_FAILED

    def check_auth_interactive(self, username, submethods):
        if self.steps[-1] != "keyboard-interactive":
            return paramiko.AUTH_FAILED
        if len(self.steps) > 1 and not self.key_known:
            return paramiko.AUTH_FAILED
        query = paramiko.InteractiveQuery("Test", "Please answer.")
        query.add_prompt("Secret: ", False)
        return query

    def check_auth_interactive_response(self, responses):
        if list(responses) == [self.options.password]:
            return paramiko.AUTH_SUCCESSFUL
        return paramiko.AUTH_FAILED

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED if kind == "session" else (
            paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        )


def set_attributes(path, attr):
    """As SFTPServer.set_file_attr, which empties the file before it sets a size."""
    if attr._flags & attr.FLAG_SIZE:
        os.truncate(path, attr.st_size)
    if attr._flags & attr.FLAG_PERMISSIONS:
        os.chmod(path, attr.st_mode & 0o7777)
    if attr._flags & attr.FLAG_UIDGID:
        os.chown(path, attr.st_uid, attr.st_gid)
    if attr._flags & attr.FLAG_AMTIME:
        os.utime(path, (attr.st_atime, attr.st_mtime))


class Handle(SFTPHandle):
    def stat(self):
        return SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))

    def chattr(self, attr):
        set_attributes(self.filename, attr)
        return paramiko.SFTP_OK


def answered(function):
    """An OSError as the status SFTP has for it."""

    def wrapped(self, *args):
        try:
            return function(self, *args)
        except OSError as error:
            return SFTPServer.convert_errno(error.errno)

    return wrapped


class Files(SFTPServerInterface):
    home = "/"

    def canonicalize(self, path):
        return os.path.normpath(os.path.join(self.home, path))

    @answered
    def list_folder(self, path):
        path = self.canonicalize(path)
        found = []
        for name in os.listdir(path):
            attr = SFTPAttributes.from_stat(os.lstat(os.path.join(path, name)))
            attr.filename = name
            found.append(attr)
        return found

    @answered
    def stat(self, path):
        return SFTPAttributes.from_stat(os.stat(self.canonicalize(path)))

    @answered
    def lstat(self, path):
        return SFTPAttributes.from_stat(os.lstat(self.canonicalize(path)))

    @answered
    def open(self, path, flags, attr):
        path = self.canonicalize(path)
        mode = getattr(attr, "st_mode", None)
        fd = os.open(path, flags, 0o666 if mode is None else mode & 0o7777)
        if flags & os.O_CREAT and attr is not None:
            attr._flags &= ~attr.FLAG_PERMISSIONS
            set_attributes(path, attr)
        how = "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb"
        if flags & os.O_APPEND:
            how = "a+b" if flags & os.O_RDWR else "ab"
        stream = os.fdopen(fd, how)
        handle = Handle(flags)
        handle.filename = path
        handle.readfile = stream
        handle.writefile = stream
        return handle

    @answered
    def remove(self, path):
        os.remove(self.canonicalize(path))
        return paramiko.SFTP_OK

    @answered
    def rename(self, old, new):
        old, new = self.canonicalize(old), self.canonicalize(new)
        if os.path.lexists(new):
            return paramiko.SFTP_FAILURE
        os.rename(old, new)
        return paramiko.SFTP_OK

    @answered
    def posix_rename(self, old, new):
        os.rename(self.canonicalize(old), self.canonicalize(new))
        return paramiko.SFTP_OK

    @answered
    def mkdir(self, path, attr):
        path = self.canonicalize(path)
        os.mkdir(path)
        if attr is not None:
            set_attributes(path, attr)
        return paramiko.SFTP_OK

    @answered
    def rmdir(self, path):
        os.rmdir(self.canonicalize(path))
        return paramiko.SFTP_OK

    @answered
    def chattr(self, path, attr):
        set_attributes(self.canonicalize(path), attr)
        return paramiko.SFTP_OK

    @answered
    def symlink(self, target, path):
        os.symlink(target, self.canonicalize(path))
        return paramiko.SFTP_OK

    @answered
    def readlink(self, path):
        return os.readlink(self.canonicalize(path))


class Transport(paramiko.Transport):
    """Answers that fall into a key exchange wait for its end without stopping it.

    In paramiko 5.1 one thread reads all messages, those of a key exchange too. Between its KEXINIT
    and the client's, which a busy client may send a megabyte later, that thread still handles
    what the client had sent before, as RFC 4253 section 7.1 has it, and answers at once:

    - CHANNEL_SUCCESS (Channel._handle_request) and EOF and CLOSE (Channel._handle_close) through
      _send_user_message, which waits until the exchange is over: for the very thread that waits.
      After 30 s (clear_to_send_timeout) it gives up and closes the connection. Stack dumps of
      such stalls have exactly that: the transport's thread in _send_user_message below
      _handle_request or _handle_close, the client's KEXINIT unread behind it. It takes a client
      that opens or closes a second channel while the server begins an exchange, as
      longhaul does when it adds a lane or gives one back; paramiko's issue 822 is the same at
      its client's end.
    - CHANNEL_OPEN_CONFIRMATION through _send_message, which does not wait, though nothing but key
      exchange may follow a KEXINIT until NEWKEYS: longhaul disconnects on that.

    With these messages kept until NEWKEYS has left, as OpenSSH keeps them, the exchange ends.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.held = []

    def _send_user_message(self, data):
        if threading.current_thread() is self:
            self._send_message(data)
        else:
            super()._send_user_message(data)

    def _send_message(self, data):
        of_channels = data.asbytes()[0] >= 80
        # Only this thread begins and ends exchanges: it cannot change in between.
        if of_channels and threading.current_thread() is self and not self.clear_to_send.is_set():
            self.held.append(data)
        else:
            super()._send_message(data)

    def _activate_outbound(self):
        # NEWKEYS leaves here, and other threads wait for the client's NEWKEYS still.
        super()._activate_outbound()
        held, self.held = self.held, []
        for data in held:
            super()._send_message(data)


def serve(connection, options, host_keys):
    transport = Transport(connection)
    security = transport.get_security_options()
    for name, values in (
        ("ciphers", options.ciphers),
        ("kex", options.kex),
        ("digests", options.macs),
    ):
        if values:
            setattr(security, name, values.split(","))
    if options.rekey_bytes:
        transport.packetizer.REKEY_BYTES = options.rekey_bytes
    for key in host_keys:
        transport.add_server_key(key)
    transport.set_subsystem_handler("sftp", SFTPServer, Files)
    try:
        transport.start_server(server=Gate(options))
    except (paramiko.SSHException, EOFError) as error:
        logging.info("negotiation: %s", error)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host-key", action="append", required=True)
    parser.add_argument("--authorized-keys", required=True)
    parser.add_argument("--home", default="/")
    parser.add_argument("--password", required=True)
    parser.add_argument("--auth", default="publickey")
    parser.add_argument("--ciphers")
    parser.add_argument("--kex")
    parser.add_argument("--macs")
    parser.add_argument("--rekey-bytes", type=int)
    parser.add_argument("--sftp-server", help="ignored: paramiko has its own")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    with open(options.authorized_keys, encoding="utf-8") as lines:
        options.authorized = [line.split()[1] for line in lines if line.strip()]
    Files.home = options.home
    host_keys = [paramiko.PKey.from_path(file) for file in options.host_key]
    listener = socket.create_server(("127.0.0.1", 0))
    print("LISTENING", listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(
            target=serve, args=(connection, options, host_keys), daemon=True
        ).start()


if __name__ == "__main__":
    main()
