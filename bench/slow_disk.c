/* Simulates a slower disk: with LD_PRELOAD, every fdatasync of the process takes longer. SQLite syncs its WAL with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

long longer_by_ns = 0;

int fdatasync(int descriptor) {
  static int (*own)(int);
  if (!own) own = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  int result = own(descriptor);
  struct timespec pause = {0, longer_by_ns};
  if (longer_by_ns > 0) nanosleep(&pause, 0);
  return result;
}
