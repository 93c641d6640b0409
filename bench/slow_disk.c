/* Preloaded, it makes every fdatasync of the process take longer, as on a slower disk: SQLite syncs its log by that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

long longer_by_ns = 0;

int fdatasync(int descriptor) {
  static int (*own)(int);
  if (!own) own = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  int told = own(descriptor);
  struct timespec pause = {0, longer_by_ns};
  if (longer_by_ns > 0) nanosleep(&pause, 0);
  return told;
}
