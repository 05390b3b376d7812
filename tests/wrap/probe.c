/* What programs do with sockets that a library before them could get wrong. Each mode prints what
 * it saw; a test runs it plain and wrapped. Connects to 127.0.0.1:PORT, where each connection gets
 * back what it sends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in to;
extern char **environ;

#define CHECK(what) do { if (!(what)) { printf("%s:%d: %s: errno %d\n", __FILE__, __LINE__, #what, errno); exit(1); } } while (0)

static int connected(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

/* The mark that packets get, as the kernel has it: past the library. A filtered connection is one end
   of a socketpair, which has none; there it is what the library answers. */
static int tos(int fd) {
    int value = -1, kept = errno;
    socklen_t len = sizeof value;
    if (syscall(SYS_getsockopt, fd, IPPROTO_IP, IP_TOS, &value, &len) != 0)
        CHECK(errno == EOPNOTSUPP && getsockopt(fd, IPPROTO_IP, IP_TOS, &value, &len) == 0);
    errno = kept;
    return value;
}

/* What the program reads back is what it has set, whatever packets get. */
static void reads_back(int fd, int set) {
    int value = -1;
    unsigned char byte = 0xff;
    socklen_t len = sizeof value, one = 1;
    CHECK(getsockopt(fd, IPPROTO_IP, IP_TOS, &value, &len) == 0 && value == set && len == sizeof value);
    CHECK(getsockopt(fd, IPPROTO_IP, IP_TOS, &byte, &one) == 0 && byte == set && one == 1);
}

static void echo(int fd, const char *text) {
    char back[64];
    size_t len = strlen(text), have = 0;
    CHECK(write(fd, text, len) == (ssize_t)len);
    while (have < len) {
        ssize_t n = read(fd, back + have, len - have);
        CHECK(n > 0);
        have += n;
    }
    CHECK(memcmp(back, text, len) == 0);
}

/* The mark: before connect, after it, after a write, and whether errno is left. */
static void mark(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), value = 0x20;
    CHECK(setsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof value) == 0);
    errno = 77;
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && errno == 77);
    echo(fd, "x");
    printf("%d ", tos(fd));
    reads_back(fd, 0x20);
    value = 0x48;
    CHECK(setsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof value) == 0 && errno == 77);
    echo(fd, "y");
    CHECK(errno == 77);
    reads_back(fd, 0x48);
    printf("%d\n", tos(fd));
    close(fd);
    CHECK(errno == 77);
}

/* Errors are the kernel's. */
static void wrong(void) {
    char byte = 0;
    CHECK(write(-1, &byte, 1) == -1 && errno == EBADF);
    CHECK(read(100000, &byte, 1) == -1 && errno == EBADF);
    CHECK(close(-5) == -1 && errno == EBADF);
    CHECK(dup2(-1, 5) == -1 && errno == EBADF);
    CHECK(dup3(1, 1, 0) == -1 && errno == EINVAL);
    CHECK(connect(0, NULL, 0) == -1);
    CHECK(poll(NULL, 0, 0) == 0);
    CHECK(setsockopt(-1, IPPROTO_IP, IP_TOS, &byte, 4) == -1 && errno == EBADF);
    int fd = connected(), one = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == -1 && errno == EISCONN);
    struct sockaddr unspec = {.sa_family = AF_UNSPEC};
    CHECK(connect(fd, &unspec, sizeof unspec) == 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    echo(fd, "again");
    puts("ok");
}

/* Where nobody listens. */
static void refused(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int done = connect(fd, (struct sockaddr *)&to, sizeof to);
    printf("%d %d\n", done, done ? errno : 0);
}

static void nonblocking(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET, .data.fd = fd};
    CHECK(epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) == 0);
    int done = connect(fd, (struct sockaddr *)&to, sizeof to);
    CHECK(done == 0 || errno == EINPROGRESS);
    CHECK(epoll_wait(poller, &event, 1, 10000) == 1);
    int error = -1;
    socklen_t len = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(write(fd, "hello", 5) == 5);
    struct pollfd one = {.fd = fd, .events = POLLIN};
    char back[8];
    size_t have = 0;
    while (have < 5) {
        CHECK(poll(&one, 1, 10000) == 1);
        ssize_t n = read(fd, back, sizeof back);
        CHECK(n > 0);
        have += n;
    }
    CHECK(read(fd, back, 1) == -1 && errno == EAGAIN);
    puts("ok");
}

static void *thread(void *arg) {
    for (int n = 0; n < 200; n++) {
        int fd = connected();
        echo(fd, "thread");
        int twin = dup(fd);
        close(fd);
        echo(twin, "twin");
        close(twin);
    }
    return arg;
}

static void threads(void) {
    pthread_t all[8];
    for (int n = 0; n < 8; n++) CHECK(pthread_create(&all[n], NULL, thread, NULL) == 0);
    for (int n = 0; n < 8; n++) pthread_join(all[n], NULL);
    puts("ok");
}

static void forks(void) {
    int kept = connected();
    for (int n = 0; n < 100; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int fd = connected();
            echo(fd, "child");
            close(kept);
            _exit(0);
        }
        echo(kept, "parent");
    }
    int status, good = 0;
    while (wait(&status) > 0) good += status == 0;
    echo(kept, "still");
    printf("%d\n", good);
}

/* The child of vfork() closes and copies over descriptors in the parent's memory. */
static void vforks(void) {
    int fd = connected(), value = 0x20;
    echo(fd, "before");
    for (int n = 0; n < 50; n++) {
        pid_t child = vfork();
        if (child == 0) {
            dup2(2, fd);
            close(fd);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawn_file_actions_addclose(&actions, fd);
    char *words[] = {"true", NULL};
    for (int n = 0; n < 50; n++) {
        pid_t child;
        int status;
        CHECK(posix_spawn(&child, "/bin/true", &actions, NULL, words, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    echo(fd, "after");
    CHECK(setsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof value) == 0);
    printf("%d\n", tos(fd));
}

/* Every number that there is, some beyond what is watched. */
static void exhausted(void) {
    struct rlimit limit = {6000, 6000};
    int least = 64;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        limit.rlim_cur = limit.rlim_max = least;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    int fd = connected(), high = -1, next;
    while ((next = dup(fd)) >= 0) high = next;
    CHECK(errno == EMFILE && high == (int)limit.rlim_cur - 1);
    echo(fd, "low");
    echo(high, "high");
    CHECK(socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EMFILE);
    close(high);
    int last = connected();
    CHECK(last == high);
    echo(last, "last");
    close(last);
    close(fd);
    puts("ok");
}

/* Numbers that become a file's where no hook sees it. */
static void reused(const char *path) {
    int value = 0x20;
    for (int how = 0; how < 3; how++) {
        int fd = connected();
        echo(fd, "socket");
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
        CHECK(file >= 0);
        if (how == 0) CHECK(syscall(SYS_close_range, fd, fd, 0) == 0 && syscall(SYS_dup2, file, fd) == fd);
        if (how == 1) CHECK(syscall(SYS_dup2, file, fd) == fd);
        if (how == 2) CHECK(dup2(file, fd) == fd);
        CHECK(write(fd, "file", 4) == 4);
        char *block = calloc(1, 5 << 20);
        CHECK(write(fd, block, 5 << 20) == 5 << 20);
        free(block);
        CHECK(setsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof value) == -1 && errno == ENOTSOCK);
        CHECK(lseek(fd, 0, SEEK_END) == (5 << 20) + 4);
        close(fd);
        close(file);
    }
    /* And another socket's. */
    int fd = connected();
    echo(fd, "one");
    CHECK(syscall(SYS_close, fd) == 0);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == fd);
    CHECK(write(fd, "unix", 4) == 4);
    close(fd);
    close(pair[1]);
    puts("ok");
}

static volatile sig_atomic_t alarms;
static int of_handler;
static void handler(int signal) {
    (void)signal;
    int saved = errno;
    CHECK(write(of_handler, ".", 1) == 1);
    alarms++;
    errno = saved;
}

/* A handler that writes, at any moment of other writes. */
static void signals(void) {
    of_handler = connected();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerspec every = {{0, 200000}, {0, 200000}};
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    timer_settime(timer, 0, &every, NULL);
    long written = 0;
    char back[65536];
    for (int n = 0; n < 3000; n++) {
        int fd = n % 10 ? of_handler : connected();
        errno = 5;
        CHECK(write(fd, "abc", 3) == 3 && errno == 5);
        if (fd == of_handler) written += 3;
        else close(fd);
        while (recv(of_handler, back, sizeof back, MSG_DONTWAIT) > 0) {}
    }
    while (alarms < 3) usleep(1000);
    timer_delete(timer);
    CHECK(written > 0);
    puts("ok");
}

/* The other ways of writing and of waiting. */
static void ways(const char *path) {
    int fd = connected();
    char back[64];
    struct iovec part = {"abcd", 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK(writev(fd, &part, 1) == 4);
    CHECK(send(fd, "efgh", 4, 0) == 4);
    CHECK(sendto(fd, "ijkl", 4, 0, NULL, 0) == 4);
    CHECK(sendmsg(fd, &message, 0) == 4);
    size_t have = 0;
    while (have < 16) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        struct timeval limit = {10, 0};
        CHECK(select(fd + 1, &set, NULL, NULL, &limit) == 1);
        part.iov_base = back + have;
        part.iov_len = 16 - have;
        ssize_t n = have % 2 ? recvmsg(fd, &message, 0) : readv(fd, &part, 1);
        CHECK(n > 0);
        have += n;
    }
    CHECK(memcmp(back, "abcdefghijklabcd", 16) == 0);
    int file = open(path, O_RDONLY);
    CHECK(file >= 0);
    off_t offset = 1;
    extern ssize_t sendfile(int, int, off_t *, size_t);
    CHECK(sendfile(fd, file, &offset, 5) == 5 && offset == 6);
    CHECK(recv(fd, back, 5, MSG_WAITALL) == 5);
    back[5] = 0;
    shutdown(fd, SHUT_WR);
    CHECK(recvfrom(fd, back + 6, 1, 0, NULL, NULL) == 0);
    puts(back);
}

/* A wait of a twentieth of a second for what comes back, at the end of the program. */
static void waits(void) {
    int fd = connected();
    echo(fd, "x");
    struct timeval limit = {0, 50000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    char byte;
    CHECK(read(fd, &byte, 1) == -1 && errno == EAGAIN);
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT};
    CHECK(poll(&one, 1, 1000) == 1);
    puts("ok");
}

/* What a program asks of its socket, and tells it. */
static void asked(void) {
    int fd = connected(), one = 1, value = 0;
    struct sockaddr_in peer, own;
    socklen_t len = sizeof peer;
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && len == sizeof peer);
    CHECK(peer.sin_family == AF_INET && peer.sin_port == to.sin_port);
    CHECK(peer.sin_addr.s_addr == to.sin_addr.s_addr);
    len = sizeof own;
    CHECK(getsockname(fd, (struct sockaddr *)&own, &len) == 0 && own.sin_family == AF_INET);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    len = sizeof value;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len) == 0 && value != 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &len) == 0 && value != 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len) == 0 && value == AF_INET);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
    struct tcp_info info;
    len = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    CHECK(info.tcpi_state == 1 && info.tcpi_rtt > 0);
    echo(fd, "asked");
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == -1 && errno == EISCONN);
    CHECK(fcntl(fd, F_GETFD) == 0);
    puts("ok");
}

/* Registered before connect(), with data of its own, and never again. */
static void epolled(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int poller = epoll_create1(0), woken = 0;
    const uint64_t mark = 0x123456789abcdef0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP, .data.u64 = mark};
    CHECK(epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) == 0);
    int done = connect(fd, (struct sockaddr *)&to, sizeof to);
    CHECK(done == 0 || errno == EINPROGRESS);
    CHECK(epoll_wait(poller, &event, 1, 10000) == 1 && event.data.u64 == mark);
    int error = -1;
    socklen_t len = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(write(fd, "hello", 5) == 5);
    event = (struct epoll_event){.events = EPOLLIN | EPOLLRDHUP, .data.u64 = mark + 1};
    CHECK(epoll_ctl(poller, EPOLL_CTL_MOD, fd, &event) == 0);
    char back[8];
    size_t have = 0;
    while (have < 5) {
        CHECK(epoll_wait(poller, &event, 1, 10000) == 1);
        CHECK(event.data.u64 == mark + 1 && event.events == EPOLLIN);
        ssize_t n = read(fd, back, sizeof back);
        CHECK(n > 0 || errno == EAGAIN);
        if (n > 0) have += n;
        CHECK(++woken < 100);
    }
    CHECK(epoll_wait(poller, &event, 1, 50) == 0);
    shutdown(fd, SHUT_WR);
    CHECK(epoll_wait(poller, &event, 1, 10000) == 1 && event.events & EPOLLRDHUP);
    CHECK(read(fd, back, 1) == 0);
    puts("ok");
}

/* Connections that this process takes itself: one that ends, and one that is reset. */
static void endings(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    for (int abrupt = 0; abrupt < 2; abrupt++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
        int other = accept(listener, NULL, NULL);
        CHECK(other >= 0 && write(other, "bytes", 5) == 5);
        char back[8];
        size_t have = 0;
        while (have < 5) {
            ssize_t n = read(fd, back + have, 5 - have);
            CHECK(n > 0);
            have += n;
        }
        struct linger none = {1, 0};
        if (abrupt) setsockopt(other, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(other);
        errno = 0;
        ssize_t n = read(fd, back, 1);
        printf("%d %s\n", (int)n, n < 0 ? strerror(errno) : "");
        close(fd);
    }
}

static void cost(int count) {
    for (int n = 0; n < count; n++) {
        int fd = connected();
        char byte;
        CHECK(write(fd, "x", 1) == 1 && read(fd, &byte, 1) == 1);
        /* A reset keeps ports from running out. */
        struct linger none = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(fd);
    }
    puts("ok");
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    to.sin_family = AF_INET;
    to.sin_port = htons(atoi(argv[2]));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    signal(SIGPIPE, SIG_IGN);
    const char *mode = argv[1], *more = argc > 3 ? argv[3] : "";
    setvbuf(stdout, NULL, _IONBF, 0);
    if (!strcmp(mode, "mark")) mark();
    else if (!strcmp(mode, "wrong")) wrong();
    else if (!strcmp(mode, "refused")) refused();
    else if (!strcmp(mode, "nonblocking")) nonblocking();
    else if (!strcmp(mode, "threads")) threads();
    else if (!strcmp(mode, "forks")) forks();
    else if (!strcmp(mode, "vforks")) vforks();
    else if (!strcmp(mode, "exhausted")) exhausted();
    else if (!strcmp(mode, "reused")) reused(more);
    else if (!strcmp(mode, "signals")) signals();
    else if (!strcmp(mode, "ways")) ways(more);
    else if (!strcmp(mode, "waits")) waits();
    else if (!strcmp(mode, "asked")) asked();
    else if (!strcmp(mode, "epolled")) epolled();
    else if (!strcmp(mode, "endings")) endings();
    else if (!strcmp(mode, "cost")) cost(atoi(more));
    else CHECK(!"a mode");
    return 0;
}
