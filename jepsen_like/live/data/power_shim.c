/* Preloaded into a node: remembers how to take back every write that was not synced, and moves its wall clock.
 *
 * Before a tracked file changes, a record that undoes the change is appended to the file RAFTMQ_SHIM_JOURNAL;
 * when a file (or directory) was synced, a record says up to where its changes are durable. The page cache survives
 * kill -9, so after the kill `power.py` plays the journal backwards and leaves what a disk would hold that never saw
 * an unsynced write. Strict POSIX: a name is durable only once its directory was synced.
 *
 * A tracked file lies under RAFTMQ_SHIM_ROOT. It gets a second name, RAFTMQ_SHIM_DIR/ino.N, so that its content
 * can be found again whatever happens to its names. Not covered: mmap, sendfile, copy_file_range, raw system calls;
 * the self-test of `power.py` proves for the very node binary that its log is covered.
 *
 * Record (little endian, 48 bytes): u32 magic, u32 kind, u64 inode, u64 a, u64 b, u64 c, u32 length 1, u32 length 2,
 * then length 1 and length 2 bytes.
 *   WRITE   a offset, b old size, c how many bytes; bytes 1: what stood there, up to the old end of the file
 *   ZEROS   the same, where only zeros stood; no bytes
 *   SIZE    a new size, b old size; bytes 1: what was cut off
 *   SYNC    a: number of this file's records that are durable
 *   CREATE  bytes 1: directory's path, bytes 2: file's path
 *   RENAME  a inode replaced or 0; bytes 1: old path, bytes 2: new path
 *   UNLINK  bytes 1: directory's path, bytes 2: file's path
 *   DIRSYNC bytes 1: directory's path
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, ZEROS, SIZE, SYNC, CREATE, RENAME, UNLINK, DIRSYNC };
#define MAGIC 0x55444e4fu
#define FDS 65536
#define FILES 65536

struct record { uint32_t magic, kind; uint64_t inode, a, b, c; uint32_t length1, length2; };
struct page { _Atomic int64_t clock_offset_ns; _Atomic uint64_t skewed, writes, syncs, full; };
struct file { uint64_t inode; uint64_t records; };

static char root[PATH_MAX], dir[PATH_MAX];
static size_t root_length;
static int journal = -1;
static struct page *page;
static struct page nopage;
static uint64_t inode_of[FDS];            /* 0: not tracked */
static char *dir_of[FDS];                 /* path of a directory under the root that is open, else NULL */
static struct file files[FILES];          /* open addressing by inode; an inode stays once it is here */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define LAZY(name) static __typeof__(&name) real; if (!real) real = REAL(name)

static void die(const char *what) {
    dprintf(2, "power shim: %s: %s\n", what, strerror(errno));
    _exit(70);
}

__attribute__((constructor)) static void begin(void) {
    const char *r = getenv("RAFTMQ_SHIM_ROOT"), *d = getenv("RAFTMQ_SHIM_DIR"), *p = getenv("RAFTMQ_SHIM_PAGE");
    const char *j = getenv("RAFTMQ_SHIM_JOURNAL");
    page = &nopage;
    if (!r || !d || !p || !j) return;
    if (!realpath(r, root)) die(r);
    snprintf(dir, sizeof dir, "%s", d);
    root_length = strlen(root);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, p, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, 4096)) die(p);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) die(p);
    syscall(SYS_close, fd);
    char own[PATH_MAX + 16];  /* a process that this one starts has its environment, and a journal of its own */
    snprintf(own, sizeof own, "%s", j);
    for (int i = 1; i < 1000; i++) {
        journal = (int)syscall(SYS_openat, AT_FDCWD, own, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
        if (journal >= 0 || errno != EEXIST) break;
        snprintf(own, sizeof own, "%s.%03d.undo", j, i);
    }
    if (journal < 0) die(own);
}

/* ---- the journal ------------------------------------------------------------------------------------------------ */

static void record(uint32_t kind, uint64_t inode, uint64_t a, uint64_t b, uint64_t c, const void *x, size_t xs,
                   const void *y, size_t ys) {
    struct record r = {MAGIC, kind, inode, a, b, c, (uint32_t)xs, (uint32_t)ys};
    struct iovec v[3] = {{&r, sizeof r}, {(void *)x, xs}, {(void *)y, ys}};
    size_t want = sizeof r + xs + ys;
    if (syscall(SYS_writev, journal, v, 3) != (ssize_t)want) die("journal");
}

static struct file *file_of(uint64_t inode) {
    for (size_t i = inode % FILES, n = 0; n < FILES; i = (i + 1) % FILES, n++) {
        if (files[i].inode == inode) return &files[i];
        if (!files[i].inode) { files[i].inode = inode; return &files[i]; }
    }
    die("too many files");
    return NULL;
}

/* The second name. `path` may be any name of the file; EEXIST: it has one already. */
static void keep(const char *path, uint64_t inode) {
    char second[PATH_MAX + 64];
    snprintf(second, sizeof second, "%s/ino.%lu", dir, (unsigned long)inode);
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, second, 0) && errno != EEXIST) die(second);
}

/* Whether a path lies under the root; its absolute form goes to `out`. The last component may not exist yet. */
static int tracked(int at, const char *path, char *out) {
    if (journal < 0 || !path) return 0;
    char joined[PATH_MAX], parent[PATH_MAX];
    if (path[0] == '/' || at == AT_FDCWD) {
        snprintf(joined, sizeof joined, "%s", path);
    } else {
        char link[64], base[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n < 0) return 0;
        base[n] = 0;
        if ((size_t)snprintf(joined, sizeof joined, "%s/%s", base, path) >= sizeof joined) return 0;
    }
    char *slash = strrchr(joined, '/');
    const char *name = slash ? slash + 1 : joined;
    if (slash) *slash = 0;
    if (!realpath(slash ? (slash == joined ? "/" : joined) : ".", parent)) return 0;
    if ((size_t)snprintf(out, PATH_MAX, "%s/%s", parent, name) >= PATH_MAX) return 0;
    return strncmp(out, root, root_length) == 0 && (out[root_length] == '/' || out[root_length] == 0);
}

static void parent_of(const char *path, char *out) {
    snprintf(out, PATH_MAX, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
}

static uint64_t inode_at(const char *path, int *is_file) {
    struct stat s;
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &s, AT_SYMLINK_NOFOLLOW)) return 0;
    *is_file = S_ISREG(s.st_mode);
    return s.st_ino;
}

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

static int opened(int at, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX], parent[PATH_MAX];
    int saved, is_file = 0, known = tracked(at, path, full);
    if (!known) {
        int fd = (int)syscall(SYS_openat, at, path, flags, mode);
        if (fd >= 0 && fd < FDS) inode_of[fd] = 0, dir_of[fd] = NULL;
        return fd;
    }
    pthread_mutex_lock(&lock);
    uint64_t before = inode_at(full, &is_file);
    if ((flags & O_TRUNC) && before && is_file && (flags & O_ACCMODE) != O_RDONLY) {
        keep(full, before);
        int reader = (int)syscall(SYS_openat, AT_FDCWD, full, O_RDONLY | O_CLOEXEC, 0);
        struct stat s;
        if (reader < 0 || fstat(reader, &s)) die(full);
        char *old = malloc((size_t)s.st_size + 1);
        if (!old || syscall(SYS_pread64, reader, old, s.st_size, 0) != s.st_size) die(full);
        record(SIZE, before, 0, (uint64_t)s.st_size, 0, old, (size_t)s.st_size, NULL, 0);
        file_of(before)->records++;
        free(old);
        syscall(SYS_close, reader);
    }
    int fd = (int)syscall(SYS_openat, at, path, flags, mode);
    saved = errno;
    if (fd >= 0 && fd < FDS) {
        struct stat s;
        inode_of[fd] = 0;
        dir_of[fd] = NULL;
        if (fstat(fd, &s)) die(full);
        if (S_ISDIR(s.st_mode)) {
            if (!realpath(full, parent)) die(full);  /* "." and "dir/" are other spellings of it */
            dir_of[fd] = strdup(parent);
        } else if (S_ISREG(s.st_mode) && (flags & O_ACCMODE) != O_RDONLY) {
            keep(full, s.st_ino);
            inode_of[fd] = s.st_ino;
            if (!before) {
                parent_of(full, parent);
                record(CREATE, s.st_ino, 0, 0, 0, parent, strlen(parent), full, strlen(full));
            }
        }
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list v; va_start(v, flags); mode = va_arg(v, mode_t); va_end(v); }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd) {
    if (fd >= 0 && fd < FDS) inode_of[fd] = 0, dir_of[fd] = NULL;  /* a path stays allocated: directories are few */
    return (int)syscall(SYS_close, fd);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static int all_zero(const char *p, size_t n) { return n == 0 || (p[0] == 0 && !memcmp(p, p + 1, n - 1)); }

/* Called with the lock held, before `size` bytes go to `offset`. */
static void before_write(int fd, uint64_t inode, uint64_t offset, uint64_t size) {
    struct stat s;
    if (fstat(fd, &s)) die("fstat");
    uint64_t end = (uint64_t)s.st_size, have = offset >= end ? 0 : (end - offset < size ? end - offset : size);
    char small[4096], *old = have <= sizeof small ? small : malloc(have);
    if (!old) die("malloc");
    if (have) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);  /* the descriptor itself may be write-only */
        ssize_t got = syscall(SYS_pread64, fd, old, have, offset);
        if (got != (ssize_t)have) {
            int reader = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
            if (reader < 0 || syscall(SYS_pread64, reader, old, have, offset) != (ssize_t)have) die("pread");
            syscall(SYS_close, reader);
        }
    }
    if (have && all_zero(old, have)) record(ZEROS, inode, offset, end, size, NULL, 0, NULL, 0);
    else record(WRITE, inode, offset, end, size, old, have, NULL, 0);
    if (old != small) free(old);
    file_of(inode)->records++;
    page->writes++;
}

static uint64_t position(int fd) {
    struct stat s;
    if (fcntl(fd, F_GETFL) & O_APPEND) return fstat(fd, &s) ? 0 : (uint64_t)s.st_size;
    return (uint64_t)lseek(fd, 0, SEEK_CUR);
}

#define TRACKED(fd) ((fd) >= 0 && (fd) < FDS && inode_of[fd])
/* A full disk: nothing is written, not even where there are bytes already. */
#define FULL() do { if (page->full) { errno = ENOSPC; return -1; } } while (0)
#define GUARDED(result, note, call) \
    pthread_mutex_lock(&lock); note; ssize_t result = call; int saved = errno; pthread_mutex_unlock(&lock); \
    errno = saved; return result

static uint64_t total(const struct iovec *v, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) sum += v[i].iov_len;
    return sum;
}

ssize_t write(int fd, const void *p, size_t n) {
    if (!TRACKED(fd)) return syscall(SYS_write, fd, p, n);
    FULL();
    GUARDED(r, before_write(fd, inode_of[fd], position(fd), n), syscall(SYS_write, fd, p, n));
}
ssize_t writev(int fd, const struct iovec *v, int n) {
    if (!TRACKED(fd)) return syscall(SYS_writev, fd, v, n);
    FULL();
    GUARDED(r, before_write(fd, inode_of[fd], position(fd), total(v, n)), syscall(SYS_writev, fd, v, n));
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
    if (!TRACKED(fd)) return syscall(SYS_pwrite64, fd, p, n, at);
    FULL();
    GUARDED(r, before_write(fd, inode_of[fd], (uint64_t)at, n), syscall(SYS_pwrite64, fd, p, n, at));
}
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at) { return pwrite(fd, p, n, at); }
ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t at, int flags) {
    if (!TRACKED(fd)) return syscall(SYS_pwritev2, fd, v, n, at, 0, flags);
    FULL();
    uint64_t where = at == -1 ? position(fd) : (uint64_t)at;
    GUARDED(r, before_write(fd, inode_of[fd], where, total(v, n)), syscall(SYS_pwritev2, fd, v, n, at, 0, flags));
}
ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off64_t at, int flags) {
    return pwritev2(fd, v, n, at, flags);
}
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) { return pwritev2(fd, v, n, at, 0); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) { return pwritev2(fd, v, n, at, 0); }

/* Called with the lock held, before the size changes. What grows is a hole of zeros and needs no bytes. */
static void before_size(int fd, uint64_t inode, uint64_t size) {
    struct stat s;
    if (fstat(fd, &s)) die("fstat");
    uint64_t end = (uint64_t)s.st_size, cut = end > size ? end - size : 0;
    char *old = malloc(cut + 1), link[64];
    if (!old) die("malloc");
    if (cut) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int reader = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
        if (reader < 0 || syscall(SYS_pread64, reader, old, cut, size) != (ssize_t)cut) die("pread");
        syscall(SYS_close, reader);
    }
    record(SIZE, inode, size, end, 0, old, cut, NULL, 0);
    free(old);
    file_of(inode)->records++;
}

int ftruncate(int fd, off_t size) {
    if (!TRACKED(fd)) return (int)syscall(SYS_ftruncate, fd, size);
    GUARDED(r, before_size(fd, inode_of[fd], (uint64_t)size), syscall(SYS_ftruncate, fd, size));
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int fallocate(int fd, int mode, off_t offset, off_t size) {
    if (!TRACKED(fd) || (mode & FALLOC_FL_KEEP_SIZE)) return (int)syscall(SYS_fallocate, fd, mode, offset, size);
    struct stat s;
    if (fstat(fd, &s)) die("fstat");
    uint64_t end = (uint64_t)(offset + size) > (uint64_t)s.st_size ? (uint64_t)(offset + size) : (uint64_t)s.st_size;
    GUARDED(r, before_size(fd, inode_of[fd], end), syscall(SYS_fallocate, fd, mode, offset, size));
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) { return fallocate(fd, mode, offset, size); }
int posix_fallocate(int fd, off_t offset, off_t size) { return fallocate(fd, 0, offset, size) ? errno : 0; }
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return posix_fallocate(fd, offset, size); }

/* ---- syncing ---------------------------------------------------------------------------------------------------- */

static int synced(int fd, long number) {
    uint64_t inode = 0, upto = 0;
    char *path = NULL;
    pthread_mutex_lock(&lock);  /* everything counted now was written before the sync begins */
    if (TRACKED(fd)) inode = inode_of[fd], upto = file_of(inode)->records;
    else if (fd >= 0 && fd < FDS && dir_of[fd]) path = dir_of[fd];
    /* Names changed while the sync runs must not count as durable: the mark is written before it, and a sync that
     * fails ends the node. */
    if (path) record(DIRSYNC, 0, 0, 0, 0, path, strlen(path), NULL, 0);
    pthread_mutex_unlock(&lock);
    int r = (int)syscall(number, fd);
    int saved = errno;
    if (inode && r == 0) {
        pthread_mutex_lock(&lock);
        record(SYNC, inode, upto, 0, 0, NULL, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
        page->syncs++;
    }
    errno = saved;
    return r;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* ---- names ------------------------------------------------------------------------------------------------------ */

int renameat(int from_at, const char *from, int to_at, const char *to) {
    char old[PATH_MAX], new[PATH_MAX];
    int known = tracked(from_at, from, old) && tracked(to_at, to, new), is_file = 0;
    if (!known) return (int)syscall(SYS_renameat2, from_at, from, to_at, to, 0);
    pthread_mutex_lock(&lock);
    uint64_t moved = inode_at(old, &is_file);
    if (moved && is_file) keep(old, moved);
    uint64_t replaced = inode_at(new, &is_file);
    if (replaced && is_file) keep(new, replaced);
    int r = (int)syscall(SYS_renameat2, from_at, from, to_at, to, 0), saved = errno;
    if (r == 0) record(RENAME, moved, replaced, 0, 0, old, strlen(old), new, strlen(new));
    pthread_mutex_unlock(&lock);
    errno = saved;
    return r;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int at, const char *path, int flags) {
    char full[PATH_MAX], parent[PATH_MAX];
    int is_file = 0;
    if ((flags & AT_REMOVEDIR) || !tracked(at, path, full)) return (int)syscall(SYS_unlinkat, at, path, flags);
    pthread_mutex_lock(&lock);
    uint64_t inode = inode_at(full, &is_file);
    if (inode && is_file) keep(full, inode);
    int r = (int)syscall(SYS_unlinkat, at, path, flags), saved = errno;
    if (r == 0 && is_file) {
        parent_of(full, parent);
        record(UNLINK, inode, 0, 0, 0, parent, strlen(parent), full, strlen(full));
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return r;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int remove(const char *path) {
    int r = unlinkat(AT_FDCWD, path, 0);
    return r && errno == EISDIR ? (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR) : r;
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    char new[PATH_MAX], parent[PATH_MAX];
    int is_file = 0;
    int r = (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
    int saved = errno;
    if (r == 0 && tracked(to_at, to, new)) {
        pthread_mutex_lock(&lock);
        uint64_t inode = inode_at(new, &is_file);
        keep(new, inode);
        parent_of(new, parent);
        record(CREATE, inode, 0, 0, 0, parent, strlen(parent), new, strlen(new));
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    return r;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

/* ---- the wall clock --------------------------------------------------------------------------------------------- */

int clock_gettime(clockid_t id, struct timespec *t) {
    LAZY(clock_gettime);
    int r = real(id, t);
    int64_t offset = page ? page->clock_offset_ns : 0;
    if (r || !offset || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return r;
    int64_t now = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec + offset;
    t->tv_sec = now / 1000000000;
    t->tv_nsec = now % 1000000000;
    page->skewed++;
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int r = clock_gettime(CLOCK_REALTIME, &now);
    if (r == 0) t->tv_sec = now.tv_sec, t->tv_usec = now.tv_nsec / 1000;
    return r;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
