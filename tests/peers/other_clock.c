/* Preloaded: the wall clock of a process is others' by as many seconds as a file says, which is mapped,
 * so that it jumps where somebody writes there. Nothing else can make it jump for one process: time
 * namespaces have clocks that only ever go on, and the machine's own is everybody's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead;

__attribute__((constructor)) static void map(void) {
  const char *path = getenv("OTHER_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0)
    return;
  void *at = mmap(0, sizeof(*ahead), PROT_READ, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED)
    ahead = at;
  close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int done = syscall(SYS_clock_gettime, clock, now);
  if (done == 0 && clock == CLOCK_REALTIME && ahead)
    now->tv_sec += *ahead;
  return done;
}
