/*
 * An SSH server around libssh with OpenSSH's sftp-server behind it, for the tests: libssh's
 * transport, authentication and channels are what is tested. One process for each connection.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libssh/callbacks.h>
#include <libssh/server.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *authorized_keys, *home, *password, *auth = "publickey", *sftp_server;
static uint64_t rekey_bytes;

struct session {
    int authenticated;
    ssh_channel channel;
    int child_fd;
    pid_t child;
    struct ssh_channel_callbacks_struct channel_callbacks;
};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static int key_is_authorized(ssh_key offered)
{
    char line[16384];
    int found = 0;
    FILE *file = fopen(authorized_keys, "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        char *type = strtok(line, " \n"), *blob = strtok(NULL, " \n");
        ssh_key known = NULL;
        if (type && blob &&
            ssh_pki_import_pubkey_base64(blob, ssh_key_type_from_name(type), &known) == SSH_OK) {
            found = ssh_key_cmp(known, offered, SSH_KEY_CMP_PUBLIC) == 0;
            ssh_key_free(known);
        }
    }
    if (file)
        fclose(file);
    return found;
}

static int on_pubkey(ssh_session s, const char *user, ssh_key key, char state, void *data)
{
    struct session *session = data;
    (void)s, (void)user;
    if (strcmp(auth, "publickey") != 0 || !key_is_authorized(key))
        return SSH_AUTH_DENIED;
    if (state == SSH_PUBLICKEY_STATE_NONE)
        return SSH_AUTH_SUCCESS; /* only asked whether the key would do */
    if (state != SSH_PUBLICKEY_STATE_VALID)
        return SSH_AUTH_DENIED;
    session->authenticated = 1;
    return SSH_AUTH_SUCCESS;
}

static int on_password(ssh_session s, const char *user, const char *given, void *data)
{
    struct session *session = data;
    (void)s, (void)user;
    if (strcmp(auth, "password") != 0 || strcmp(given, password) != 0)
        return SSH_AUTH_DENIED;
    session->authenticated = 1;
    return SSH_AUTH_SUCCESS;
}

static int on_subsystem(ssh_session s, ssh_channel channel, const char *name, void *data)
{
    struct session *session = data;
    int pair[2];
    (void)s, (void)channel;
    if (!session->authenticated || strcmp(name, "sftp") != 0 || session->child > 0)
        return SSH_ERROR;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return SSH_ERROR;
    session->child = fork();
    if (session->child == 0) {
        dup2(pair[1], 0);
        dup2(pair[1], 1);
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        execl(sftp_server, sftp_server, "-d", home, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    session->child_fd = pair[0];
    return session->child > 0 ? SSH_OK : SSH_ERROR;
}

static ssh_channel on_open(ssh_session s, void *data)
{
    struct session *session = data;
    if (session->channel)
        return NULL;
    session->channel = ssh_channel_new(s);
    session->channel_callbacks.userdata = session;
    session->channel_callbacks.channel_subsystem_request_function = on_subsystem;
    ssh_callbacks_init(&session->channel_callbacks);
    ssh_set_channel_callbacks(session->channel, &session->channel_callbacks);
    return session->channel;
}

static int nothing(socket_t fd, int events, void *data)
{
    (void)fd, (void)events, (void)data;
    return 0;
}

/* Carries bytes between the channel and sftp-server until that ends. */
static void pump(struct session *session, ssh_event event)
{
    static char up[65536], down[32768];
    int fd = session->child_fd, up_len = 0, up_at = 0, watching = 0, progress = 1, ended = 0;
    while (!ended && ssh_channel_is_open(session->channel)) {
        short wanted = POLLIN | (up_at < up_len ? POLLOUT : 0);
        if (wanted != watching) {
            if (watching)
                ssh_event_remove_fd(event, fd);
            ssh_event_add_fd(event, fd, wanted, nothing, NULL);
            watching = wanted;
        }
        if (!progress && ssh_event_dopoll(event, 1000) == SSH_ERROR)
            break;
        progress = 0;
        if (up_at == up_len) {
            int len = ssh_channel_read_nonblocking(session->channel, up, sizeof up, 0);
            up_at = 0;
            up_len = len > 0 ? len : 0;
            if (len > 0)
                progress = 1;
            else if (ssh_channel_is_eof(session->channel))
                shutdown(fd, SHUT_WR);
        }
        if (up_at < up_len) {
            ssize_t len = write(fd, up + up_at, up_len - up_at);
            if (len > 0) {
                up_at += len;
                progress = 1;
            }
        }
        ssize_t len = read(fd, down, sizeof down);
        if (len > 0) {
            progress = 1;
            if (ssh_channel_write(session->channel, down, len) != len)
                break;
        } else if (len == 0 || errno != EAGAIN) {
            ended = 1;
        }
    }
    ssh_event_remove_fd(event, fd);
}

static void serve(ssh_bind bind, ssh_session s)
{
    struct session session = { .child_fd = -1 };
    struct ssh_server_callbacks_struct callbacks = {
        .userdata = &session,
        .auth_password_function = on_password,
        .auth_pubkey_function = on_pubkey,
        .channel_open_request_session_function = on_open,
    };
    ssh_event event = ssh_event_new();
    int status = 0;
    (void)bind;
    signal(SIGCHLD, SIG_DFL);
    ssh_callbacks_init(&callbacks);
    ssh_set_server_callbacks(s, &callbacks);
    if (rekey_bytes)
        ssh_options_set(s, SSH_OPTIONS_REKEY_DATA, &rekey_bytes);
    ssh_set_auth_methods(s, strcmp(auth, "password") == 0 ? SSH_AUTH_METHOD_PASSWORD
                                                           : SSH_AUTH_METHOD_PUBLICKEY);
    if (ssh_handle_key_exchange(s) != SSH_OK)
        fail("key exchange", ssh_get_error(s));
    ssh_event_add_session(event, s);
    while (session.child_fd < 0)
        if (ssh_event_dopoll(event, 30000) == SSH_ERROR)
            fail("session", ssh_get_error(s));
    pump(&session, event);
    close(session.child_fd);
    waitpid(session.child, &status, 0);
    if (ssh_channel_is_open(session.channel)) {
        ssh_channel_request_send_exit_status(session.channel, WEXITSTATUS(status));
        ssh_channel_send_eof(session.channel);
        ssh_channel_close(session.channel);
    }
    /* The client closes; what is left on the way must not be lost to a reset. */
    for (int i = 0; i < 50 && ssh_is_connected(s); i++)
        if (ssh_event_dopoll(event, 100) == SSH_ERROR)
            break;
    ssh_disconnect(s);
    exit(0);
}

static void set(ssh_bind bind, enum ssh_bind_options_e option, const void *value)
{
    if (ssh_bind_options_set(bind, option, value) != SSH_OK)
        fail("option", ssh_get_error(bind));
}

int main(int argc, char **argv)
{
    enum { HOST_KEY = 1, AUTHORIZED, HOME, PASSWORD, AUTH, CIPHERS, KEX, MACS, REKEY, SFTP };
    static const struct option flags[] = {
        { "host-key", 1, 0, HOST_KEY }, { "authorized-keys", 1, 0, AUTHORIZED },
        { "home", 1, 0, HOME },         { "password", 1, 0, PASSWORD },
        { "auth", 1, 0, AUTH },         { "ciphers", 1, 0, CIPHERS },
        { "kex", 1, 0, KEX },           { "macs", 1, 0, MACS },
        { "rekey-bytes", 1, 0, REKEY }, { "sftp-server", 1, 0, SFTP },
        { 0, 0, 0, 0 },
    };
    ssh_init();
    ssh_bind bind = ssh_bind_new();
    int flag, no = 0, port = 0;
    set(bind, SSH_BIND_OPTIONS_PROCESS_CONFIG, &no);
    set(bind, SSH_BIND_OPTIONS_BINDADDR, "127.0.0.1");
    set(bind, SSH_BIND_OPTIONS_BINDPORT, &port);
    while ((flag = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        switch (flag) {
        case HOST_KEY: set(bind, SSH_BIND_OPTIONS_HOSTKEY, optarg); break;
        case AUTHORIZED: authorized_keys = optarg; break;
        case HOME: home = optarg; break;
        case PASSWORD: password = optarg; break;
        case AUTH: auth = optarg; break;
        case CIPHERS:
            set(bind, SSH_BIND_OPTIONS_CIPHERS_C_S, optarg);
            set(bind, SSH_BIND_OPTIONS_CIPHERS_S_C, optarg);
            break;
        case KEX: set(bind, SSH_BIND_OPTIONS_KEY_EXCHANGE, optarg); break;
        case MACS:
            set(bind, SSH_BIND_OPTIONS_HMAC_C_S, optarg);
            set(bind, SSH_BIND_OPTIONS_HMAC_S_C, optarg);
            break;
        case REKEY: rekey_bytes = strtoull(optarg, NULL, 10); break;
        case SFTP: sftp_server = optarg; break;
        default: return 2;
        }
    }
    if (!sftp_server)
        fail("--sftp-server", "needed");
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    if (ssh_bind_listen(bind) != SSH_OK)
        fail("listen", ssh_get_error(bind));
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    getsockname(ssh_bind_get_fd(bind), (struct sockaddr *)&address, &len);
    printf("LISTENING %d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        ssh_session s = ssh_new();
        if (ssh_bind_accept(bind, s) != SSH_OK)
            fail("accept", ssh_get_error(bind));
        pid_t pid = fork();
        if (pid == 0)
            serve(bind, s);
        /* Frees and closes our copy without a word to the client. */
        ssh_free(s);
    }
}
