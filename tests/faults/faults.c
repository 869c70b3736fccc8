/*
 * A library for LD_PRELOAD that lets the n-th file operation below a folder fail.
 *
 * It wraps the functions of libc that change files and those that read them. It counts the calls that concern a path
 * below FAULTS_ROOT, in all processes of a command together and each sort by itself, and at call number FAULTS_AT of
 * those that change files does what FAULTS_KIND names:
 *
 *   kill        SIGKILL to the process that makes the call, before the call
 *   torn        the same, after the first half of the bytes where the call is a write
 *   power       the same, and every other process of the command dies before its next call; the caller of the
 *               command then cuts what no fsync covered
 *   full        the disk is full from here on: half of this write, then ENOSPC for all that takes room
 *   eio         this call fails with EIO
 *   int, term, hup   SIGINT, SIGTERM or SIGHUP to the process group of the command, as a terminal sends it
 *   count       nothing
 *
 *   FAULTS_CONTROL      a file of 4096 zero bytes, mapped by all processes (struct control)
 *   FAULTS_LOG          gets a line per call and per event
 *   FAULTS_READS        FAULTS_AT is the number of a call that reads
 *
 * What a process writes through a mapping, and what libc writes for itself (buffered stdio), is not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define ALIAS(of) __attribute__((visibility("default"), alias(of)))
/* The next definition of a wrapped function: libc's. */
#define REAL(name) ((__typeof__(&name))next(#name))

struct control { /* read by engine.py: keep the order */
    _Atomic int64_t calls;
    _Atomic int64_t main;  /* process id of the command */
    _Atomic int64_t fired; /* process id in which the fault happened */
    _Atomic int64_t down;  /* power is out: no process may go on */
    _Atomic int64_t full;
    _Atomic int64_t reads;
};

enum room { READS, FREES, ONCE, TAKES }; /* a full disk refuses no call, no call, the n-th only, and all of them */
enum verdict { GO, REFUSE, HALF, HALF_THEN_DIE };

static struct control *control;
static const char *root, *kind, *log_path;
static int64_t at;
static int reads;

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

static long raw_open(const char *path, int flags)
{
    return REAL(syscall)(SYS_openat, AT_FDCWD, path, flags, 0666);
}

/* At the start of a program; a copy of a process calls it again when it has the variables of a command. */
EXPORT __attribute__((constructor)) void faults_begin(void)
{
    const char *path = getenv("FAULTS_CONTROL");
    root = getenv("FAULTS_ROOT");
    kind = getenv("FAULTS_KIND");
    log_path = getenv("FAULTS_LOG");
    if (!path || !root || !kind || !log_path)
        return;
    at = getenv("FAULTS_AT") ? atoll(getenv("FAULTS_AT")) : 0;
    reads = getenv("FAULTS_READS") != NULL;
    int fd = (int)raw_open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REAL(close)(fd);
    if (mapped == MAP_FAILED)
        return;
    control = mapped;
    int64_t nobody = 0;
    atomic_compare_exchange_strong(&control->main, &nobody, getpid());
}

static void note(const char *line, size_t size)
{
    int kept = errno, fd = (int)raw_open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC);
    if (fd >= 0) {
        REAL(syscall)(SYS_write, fd, line, size);
        REAL(close)(fd);
    }
    errno = kept;
}

static void die(void)
{
    REAL(syscall)(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Paths. */

static int path_of_fd(int fd, char *path)
{
    char link[64];
    if (fd == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/self/cwd");
    else
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = '\0';
    return size > 0;
}

static int absolute(int folder, const char *name, char *path)
{
    if (!name)
        return 0;
    if (name[0] == '/')
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    if (!path_of_fd(folder, path))
        return 0;
    size_t size = strlen(path);
    return snprintf(path + size, PATH_MAX - size, "/%s", name) < (int)(PATH_MAX - size);
}

static int below_root(const char *path)
{
    size_t size = strlen(root);
    return strncmp(path, root, size) == 0 && (path[size] == '/' || path[size] == '\0');
}

/* Events tell which bytes of a file have reached the disk; see engine.py. */

static void event(const char *what, int fd, int64_t size)
{
    struct stat seen;
    char line[128];
    int kept = errno;
    if (fstat(fd, &seen) == 0 && S_ISREG(seen.st_mode)) {
        int64_t told = size < 0 ? (int64_t)seen.st_size : size;
        int length = snprintf(line, sizeof line, "event %s %ju %ju %jd\n", what, (uintmax_t)seen.st_dev,
                              (uintmax_t)seen.st_ino, (intmax_t)told);
        note(line, (size_t)length);
    }
    errno = kept;
}

static void shared_memory(const char *path)
{
    char line[PATH_MAX + 16];
    int kept = errno, length = snprintf(line, sizeof line, "shm %s\n", path);
    note(line, (size_t)length);
    errno = kept;
}

static void send_signal(void)
{
    pid_t group = getpgid((pid_t)atomic_load(&control->main));
    int number = !strcmp(kind, "int") ? SIGINT : !strcmp(kind, "term") ? SIGTERM : !strcmp(kind, "hup") ? SIGHUP : 0;
    if (number && group > 1)
        REAL(syscall)(SYS_kill, -group, number);
}

/* One call on a path that is known to be below the root: count it, and let it fail if it is the one. */
static enum verdict call(const char *name, const char *path, enum room room, size_t bytes)
{
    char line[PATH_MAX + 96];
    if (atomic_load(&control->down))
        die();
    int64_t number = atomic_fetch_add(room == READS ? &control->reads : &control->calls, 1) + 1;
    int length = snprintf(line, sizeof line, "%s %jd %d %s %s\n", room == READS ? "read" : "call", (intmax_t)number,
                          (int)getpid(), name, path);
    note(line, (size_t)length);
    if (number != at || (room == READS) != reads) {
        if (atomic_load(&control->full) && room == TAKES) {
            errno = ENOSPC;
            return REFUSE;
        }
        return GO;
    }
    atomic_store(&control->fired, getpid());
    if (!strcmp(kind, "kill"))
        die();
    if (!strcmp(kind, "torn")) {
        if (bytes > 1)
            return HALF_THEN_DIE;
        die();
    }
    if (!strcmp(kind, "power")) {
        atomic_store(&control->down, 1);
        die();
    }
    if (!strcmp(kind, "full")) {
        atomic_store(&control->full, 1);
        if (bytes > 1)
            return HALF;
        if (room == FREES)
            return GO;
        errno = ENOSPC;
        return REFUSE;
    }
    if (!strcmp(kind, "eio")) {
        errno = EIO;
        return REFUSE;
    }
    send_signal();
    return GO;
}

/* The same for any path, or for an open file (without a path). */
static enum verdict path_call(const char *name, int folder, const char *given, enum room room)
{
    char path[PATH_MAX];
    int kept = errno;
    int counts = control && (given ? absolute(folder, given, path) : path_of_fd(folder, path)) && below_root(path);
    errno = kept;
    return counts ? call(name, path, room, 0) : GO;
}

/* Define a function of libc whose call counts, and is the real one unless it is refused. */
#define COUNTED(type, name, parameters, arguments, as, folder, path, room)                       \
    EXPORT type name parameters                                                                  \
    {                                                                                            \
        return path_call(as, folder, path, room) == REFUSE ? -1 : REAL(name) arguments;          \
    }

/* Opening. */

static int opened(const char *name, int folder, const char *given, int flags, mode_t mode)
{
    char path[PATH_MAX];
    int unnamed = (flags & O_TMPFILE) == O_TMPFILE, makes = unnamed || (flags & (O_CREAT | O_TRUNC)), made = 0;
    int kept = errno;
    if (control && absolute(folder, given, path)) {
        int fresh = unnamed || faccessat(folder, given, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
        errno = kept;
        if ((flags & O_CREAT) && fresh && !strncmp(path, "/dev/shm/", 9))
            shared_memory(path);
        if (below_root(path)) {
            if (call(name, path, !makes ? READS : fresh ? TAKES : FREES, 0) == REFUSE)
                return -1;
            made = makes && (fresh || (flags & O_TRUNC));
        }
    }
    int fd = REAL(openat)(folder, given, flags, mode);
    if (fd >= 0 && made)
        event("made", fd, 0);
    return fd;
}

#define MODE_OF(flags, last)                                        \
    mode_t mode = 0;                                                \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {  \
        va_list rest;                                               \
        va_start(rest, last);                                       \
        mode = va_arg(rest, mode_t);                                \
        va_end(rest);                                               \
    }

EXPORT int open(const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return opened("open", AT_FDCWD, path, flags, mode);
}

EXPORT int openat(int folder, const char *path, int flags, ...)
{
    MODE_OF(flags, flags)
    return opened("open", folder, path, flags, mode);
}

EXPORT int creat(const char *path, mode_t mode)
{
    return opened("open", AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
    char full[PATH_MAX];
    int makes = mode[0] != 'r', kept = errno;
    if (control && absolute(AT_FDCWD, path, full) && below_root(full)) {
        enum room room = !makes ? READS : access(full, F_OK) != 0 ? TAKES : FREES;
        errno = kept;
        if (call("fopen", full, room, 0) == REFUSE)
            return NULL;
    }
    errno = kept;
    return REAL(fopen)(path, mode);
}

EXPORT int shm_open(const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "/dev/shm/%s", name[0] == '/' ? name + 1 : name);
    if (control && (flags & O_CREAT))
        shared_memory(path);
    return REAL(shm_open)(name, flags, mode);
}

int open64(const char *path, int flags, ...) ALIAS("open");
int openat64(int folder, const char *path, int flags, ...) ALIAS("openat");
int creat64(const char *path, mode_t mode) ALIAS("creat");
FILE *fopen64(const char *path, const char *mode) ALIAS("fopen");

/* Writing. */

struct write {
    enum verdict verdict;
    int ours;
    int64_t before;
};

static struct write begin_write(const char *name, int fd, size_t bytes)
{
    struct write one = {GO, 0, 0};
    struct stat seen;
    char path[PATH_MAX];
    int kept = errno;
    if (control && path_of_fd(fd, path) && below_root(path)) {
        one.ours = 1;
        one.before = fstat(fd, &seen) == 0 ? (int64_t)seen.st_size : 0;
        errno = kept;
        one.verdict = call(name, path, TAKES, bytes);
        return one;
    }
    errno = kept;
    return one;
}

static ssize_t end_write(struct write one, int fd, ssize_t done)
{
    int kept = errno;
    if (one.ours && done >= 0) {
        if (fcntl(fd, F_GETFL) & (O_SYNC | O_DSYNC))
            event("synced", fd, -1);
        else
            event("written", fd, one.before);
    }
    if (one.verdict == HALF_THEN_DIE)
        die();
    errno = kept;
    return done;
}

#define WRITE(name, fd, size, whole, half)             \
    struct write one = begin_write(name, fd, size);    \
    if (one.verdict == REFUSE)                         \
        return -1;                                     \
    return end_write(one, fd, one.verdict == GO ? (whole) : (half));

EXPORT ssize_t write(int fd, const void *data, size_t size)
{
    WRITE("write", fd, size, REAL(write)(fd, data, size), REAL(write)(fd, data, size / 2))
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t where)
{
    WRITE("write", fd, size, REAL(pwrite)(fd, data, size, where), REAL(pwrite)(fd, data, size / 2, where))
}

static size_t bytes_of(const struct iovec *parts, int count)
{
    size_t bytes = 0;
    for (int part = 0; part < count; part++)
        bytes += parts[part].iov_len;
    return bytes;
}

static struct iovec half_of(const struct iovec *parts)
{
    return (struct iovec){parts[0].iov_base, parts[0].iov_len > 1 ? parts[0].iov_len / 2 : parts[0].iov_len};
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
    struct iovec half = count > 0 ? half_of(parts) : (struct iovec){NULL, 0};
    WRITE("write", fd, bytes_of(parts, count), REAL(writev)(fd, parts, count), REAL(writev)(fd, &half, 1))
}

EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t where)
{
    struct iovec half = count > 0 ? half_of(parts) : (struct iovec){NULL, 0};
    WRITE("write", fd, bytes_of(parts, count), REAL(pwritev)(fd, parts, count, where),
          REAL(pwritev)(fd, &half, 1, where))
}

EXPORT ssize_t sendfile(int fd, int from, off_t *where, size_t size)
{
    WRITE("sendfile", fd, size, REAL(sendfile)(fd, from, where, size), REAL(sendfile)(fd, from, where, size / 2))
}

EXPORT ssize_t copy_file_range(int from, off64_t *from_where, int fd, off64_t *where, size_t size, unsigned flags)
{
    WRITE("copy", fd, size, REAL(copy_file_range)(from, from_where, fd, where, size, flags),
          REAL(copy_file_range)(from, from_where, fd, where, size / 2, flags))
}

EXPORT int ftruncate(int fd, off_t size)
{
    WRITE("truncate", fd, 0, REAL(ftruncate)(fd, size), -1)
}

EXPORT int fallocate(int fd, int mode, off_t where, off_t size)
{
    WRITE("allocate", fd, 0, REAL(fallocate)(fd, mode, where, size), -1)
}

EXPORT int posix_fallocate(int fd, off_t where, off_t size)
{
    struct write one = begin_write("allocate", fd, 0);
    if (one.verdict == REFUSE)
        return errno;
    int failed = REAL(posix_fallocate)(fd, where, size);
    end_write(one, fd, failed ? -1 : 0);
    return failed;
}

COUNTED(int, truncate, (const char *path, off_t size), (path, size), "truncate", AT_FDCWD, path, ONCE)

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t where) ALIAS("pwrite");
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t where) ALIAS("pwritev");
ssize_t sendfile64(int fd, int from, off64_t *where, size_t size) ALIAS("sendfile");
int ftruncate64(int fd, off64_t size) ALIAS("ftruncate");
int fallocate64(int fd, int mode, off64_t where, off64_t size) ALIAS("fallocate");
int posix_fallocate64(int fd, off64_t where, off64_t size) ALIAS("posix_fallocate");
int truncate64(const char *path, off64_t size) ALIAS("truncate");

/* Syncing. */

static int synced(int fd, int done)
{
    if (done == 0 && control)
        event("synced", fd, -1);
    return done;
}

EXPORT int fsync(int fd)
{
    return path_call("fsync", fd, NULL, ONCE) == REFUSE ? -1 : synced(fd, REAL(fsync)(fd));
}

EXPORT int fdatasync(int fd)
{
    return path_call("fdatasync", fd, NULL, ONCE) == REFUSE ? -1 : synced(fd, REAL(fdatasync)(fd));
}

EXPORT int syncfs(int fd)
{
    if (path_call("syncfs", fd, NULL, ONCE) == REFUSE)
        return -1;
    int done = REAL(syncfs)(fd);
    if (done == 0 && control)
        note("event all 0 0 0\n", 16);
    return done;
}

/* Names. */

COUNTED(int, mkdir, (const char *path, mode_t mode), (path, mode), "mkdir", AT_FDCWD, path, TAKES)
COUNTED(int, mkdirat, (int in, const char *path, mode_t mode), (in, path, mode), "mkdir", in, path, TAKES)
COUNTED(int, rmdir, (const char *path), (path), "rmdir", AT_FDCWD, path, FREES)
COUNTED(int, unlink, (const char *path), (path), "unlink", AT_FDCWD, path, FREES)
COUNTED(int, unlinkat, (int in, const char *path, int flags), (in, path, flags),
        flags & AT_REMOVEDIR ? "rmdir" : "unlink", in, path, FREES)
COUNTED(int, rename, (const char *from, const char *to), (from, to), "rename", AT_FDCWD, to, ONCE)
COUNTED(int, renameat, (int out, const char *from, int in, const char *to), (out, from, in, to), "rename", in, to, ONCE)
COUNTED(int, renameat2, (int out, const char *from, int in, const char *to, unsigned flags), (out, from, in, to, flags),
        "rename", in, to, ONCE)
COUNTED(int, link, (const char *from, const char *to), (from, to), "link", AT_FDCWD, to, TAKES)
COUNTED(int, linkat, (int out, const char *from, int in, const char *to, int flags), (out, from, in, to, flags),
        "link", in, to, TAKES)
COUNTED(int, symlink, (const char *from, const char *to), (from, to), "symlink", AT_FDCWD, to, TAKES)
COUNTED(int, symlinkat, (const char *from, int in, const char *to), (from, in, to), "symlink", in, to, TAKES)

/* Programs that reach renameat2() by its number. */
EXPORT long syscall(long number, ...)
{
    va_list rest;
    va_start(rest, number);
    long a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
    long d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_renameat2)
        return renameat2((int)a, (const char *)b, (int)c, (const char *)d, (unsigned)e);
    return REAL(syscall)(number, a, b, c, d, e, f);
}

/* Reading. */

COUNTED(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size), "read", fd, NULL, READS)
COUNTED(ssize_t, pread, (int fd, void *out, size_t size, off_t where), (fd, out, size, where), "read", fd, NULL, READS)
COUNTED(ssize_t, readv, (int fd, const struct iovec *parts, int count), (fd, parts, count), "read", fd, NULL, READS)

ssize_t pread64(int fd, void *data, size_t size, off64_t where) ALIAS("pread");

/* A full disk says so when it is asked. */

#define STATVFS(name)                                                               \
    EXPORT int name(const char *given, struct name *found)                          \
    {                                                                               \
        char path[PATH_MAX];                                                        \
        int failed = REAL(name)(given, found);                                      \
        if (!failed && control && atomic_load(&control->full) &&                    \
            absolute(AT_FDCWD, given, path) && below_root(path))                    \
            found->f_bfree = found->f_bavail = 0;                                   \
        return failed;                                                              \
    }

STATVFS(statvfs)
STATVFS(statvfs64)
