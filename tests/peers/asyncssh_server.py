"""An SSH server with SFTP around asyncssh, for the tests. Serves the whole file system."""

import argparse
import asyncio
import logging
import os
import sys

import asyncssh


class Gate(asyncssh.SSHServer):
    def __init__(self, options):
        self.options = options
        self.steps = options.auth.split(",")

    def begin_auth(self, username):
        return True

    def public_key_auth_supported(self):
        return "publickey" in self.steps

    def password_auth_supported(self):
        return "password" in self.steps

    def validate_password(self, username, password):
        return password == self.options.password

    def kbdint_auth_supported(self):
        return "keyboard-interactive" in self.steps

    def get_kbdint_challenge(self, username, lang, submethods):
        return "Test", "Please answer.", "", [("Secret: ", False)]

    def validate_kbdint_response(self, username, responses):
        return list(responses) == [self.options.password]


class Files(asyncssh.SFTPServer):
    """Relative paths start in --home, absolute ones at the root."""

    home = b"/"

    def map_path(self, path):
        return os.path.normpath(os.path.join(self.home, path))

    def reverse_map_path(self, path):
        return path


async def serve(options):
    more = {}
    for name, values in (
        ("encryption_algs", options.ciphers),
        ("kex_algs", options.kex),
        ("mac_algs", options.macs),
    ):
        if values:
            more[name] = values.split(",")
    if options.rekey_bytes:
        more["rekey_bytes"] = options.rekey_bytes
    if options.host_certificate:
        more["server_host_certs"] = options.host_certificate
    keys = asyncssh.SSHAuthorizedKeys()
    with open(options.authorized_keys, encoding="utf-8") as lines:
        text = lines.read()
    if options.user_authority:
        with open(options.user_authority, encoding="utf-8") as authority:
            text += "cert-authority " + authority.read()
    if text.strip():
        keys = asyncssh.import_authorized_keys(text)
        more["authorized_client_keys"] = keys
    listener = await asyncssh.create_server(
        lambda: Gate(options),
        "127.0.0.1",
        0,
        server_host_keys=options.host_key,
        sftp_factory=Files,
        **more,
    )
    print("LISTENING", listener.get_port(), flush=True)
    await asyncio.Event().wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host-key", action="append", required=True)
    parser.add_argument("--host-certificate", action="append")
    parser.add_argument("--user-authority")
    parser.add_argument("--authorized-keys", required=True)
    parser.add_argument("--home", default="/")
    parser.add_argument("--password", required=True)
    parser.add_argument("--auth", default="publickey")
    parser.add_argument("--ciphers")
    parser.add_argument("--kex")
    parser.add_argument("--macs")
    parser.add_argument("--rekey-bytes", type=int)
    parser.add_argument("--sftp-server", help="ignored: asyncssh has its own")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    Files.home = os.fsencode(options.home)
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
