"""Puts a file on an SFTP server and gets it back, with the library that is named, for the tests."""

import sys


def with_paramiko(port, user, key, local, remote, back):
    import paramiko

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect(
        "127.0.0.1",
        port=port,
        username=user,
        key_filename=key,
        allow_agent=False,
        look_for_keys=False,
    )
    with client, client.open_sftp() as sftp:
        sftp.put(local, remote)
        sftp.get(remote, back)
        # Whoever sees no exit status waits for ever.
        _, output, _ = client.exec_command("touch there")
        assert output.channel.recv_exit_status() == 1


def with_asyncssh(port, user, key, local, remote, back):
    import asyncio

    import asyncssh

    async def run():
        async with asyncssh.connect(
            "127.0.0.1", port=port, username=user, client_keys=[key], known_hosts=None
        ) as client:
            async with client.start_sftp_client() as sftp:
                await sftp.put(local, remote)
                await sftp.get(remote, back)
            assert (await client.run("touch there")).exit_status == 1

    asyncio.run(run())


library, port, *rest = sys.argv[1:]
{"paramiko": with_paramiko, "asyncssh": with_asyncssh}[library](int(port), *rest)
