/* A library to preload that has writes and fsyncs of files fail as a disk would, while a shared byte says so.

   CSTP_FAULT_SWITCH names a file of one byte: '-' no fault, 'f' disk full, 'r' read-only, 's' fsync fails, 'l' fsync
   is slow. CSTP_FAULT_FOLDER names the folder whose regular files it is about, with no symbolic link in its path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const volatile char *fault_switch;
static const char *folder;

__attribute__((constructor)) static void prepare(void) {
    const char *path = getenv("CSTP_FAULT_SWITCH");
    folder = getenv("CSTP_FAULT_FOLDER");
    int descriptor = path && folder ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *mapped = mmap(NULL, 1, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped != MAP_FAILED) fault_switch = mapped;
}

static char fault(void) { return fault_switch ? *fault_switch : '-'; }

static int is_concerned(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

/* Return whether a write must fail, and set errno. */
static int write_fails(int descriptor) {
    char kind = fault();
    if ((kind != 'f' && kind != 'r') || !is_concerned(descriptor)) return 0;
    errno = kind == 'f' ? ENOSPC : EROFS;
    return 1;
}

static int sync_fails(int descriptor) {
    char kind = fault();
    if ((kind != 's' && kind != 'l') || !is_concerned(descriptor)) return 0;
    if (kind == 'l') {
        struct timespec pause = {0, 300 * 1000 * 1000};
        nanosleep(&pause, NULL);
        return 0;
    }
    errno = EIO;
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t count) { return write_fails(fd) ? -1 : NEXT(write)(fd, data, count); }
ssize_t pwrite(int fd, const void *data, size_t count, off_t at) {
    return write_fails(fd) ? -1 : NEXT(pwrite)(fd, data, count, at);
}
ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at) {
    return write_fails(fd) ? -1 : NEXT(pwrite64)(fd, data, count, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return write_fails(fd) ? -1 : NEXT(writev)(fd, parts, count);
}
int ftruncate(int fd, off_t length) { return write_fails(fd) ? -1 : NEXT(ftruncate)(fd, length); }
int ftruncate64(int fd, off64_t length) { return write_fails(fd) ? -1 : NEXT(ftruncate64)(fd, length); }
int posix_fallocate(int fd, off_t at, off_t length) {
    return write_fails(fd) ? errno : NEXT(posix_fallocate)(fd, at, length);
}
int fsync(int fd) { return sync_fails(fd) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return sync_fails(fd) ? -1 : NEXT(fdatasync)(fd); }
