/*
 * The simulated device's memory, for LD_PRELOAD (first in it).
 *
 * torch takes the memory of its CPU storages from posix_memalign, called in libc10.so
 * (c10/core/impl/alloc_cpu.cpp). Each such call for 64 KiB or more is answered here with an unlinked
 * file (O_TMPFILE) on the tmpfs named by SIMDEVICE_DIR, mapped shared: the tmpfs's size is the
 * device's, what statvfs calls used is what is allocated, a full device is the kernel's ENOSPC, and a
 * process that dies gives back what it held. Everything else stays host memory, also what others ask
 * of posix_memalign: oneDNN keeps a quarter of a megabyte for each kernel that it ever built.
 *
 * Addresses. One PROT_NONE reservation holds a region for each size class (slots of 64 KiB, 128 KiB,
 * ... up to the device's size), so the class, the slot and its record follow from an address by
 * arithmetic: free() of a foreign address costs two loads, of ours no search. A slot is used again as
 * soon as it is free. A live block fills more than half of its slot, so a region of four times the
 * device does not run out of slots while the device has room.
 *
 * fork. A child inherits the mappings, as the kernel gives them: it keeps the memory in use until it
 * frees the block, execs or ends, whatever its parent does. What it frees is its own mapping, never
 * its parent's. Inherited blocks are read-only in the child: a write, which for private memory would
 * have copied the page, would change the parent's tensor.
 *
 * A device that cannot be used (no SIMDEVICE_DIR, no tmpfs there) makes these allocations fail, and
 * says why in one line on stderr: host memory never takes its place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { MIN_SHIFT = 16, MAX_CLASSES = 28 };
static const size_t MIN_BYTES = (size_t)1 << MIN_SHIFT;
/* A signal interrupts fallocate, which then undoes the whole call: short steps always get on. */
static const size_t STEP_BYTES = (size_t)8 << 20;

struct slot {
    _Atomic size_t bytes; /* mapped length of the live block; 0: none */
    uint32_t next_free;   /* index + 1; 0: last */
};

struct size_class {
    _Alignas(64) pthread_mutex_t lock; /* of first_free, unused, next_free; no system call under it */
    uint32_t first_free;               /* index + 1; 0: none */
    uint32_t unused;                   /* slots from here on were never taken */
    uint32_t count;
    unsigned shift; /* log2 of the slot's bytes */
    char *base;
    struct slot *slots;
};

static struct {
    pthread_once_t once;
    char *directory;
    dev_t dev;
    size_t bytes;
    size_t page;
    char *base;
    _Atomic size_t span; /* set last: 0 while there are no blocks to own */
    unsigned region_shift;
    unsigned classes_n;
    struct size_class classes[MAX_CLASSES];
    char unusable[256]; /* why allocations fail; empty: they do not */
    atomic_flag told;
} device = {.once = PTHREAD_ONCE_INIT, .told = ATOMIC_FLAG_INIT};

static int (*_Atomic next_posix_memalign)(void **, size_t, size_t);
static void (*_Atomic next_free)(void *);
static void *(*_Atomic next_realloc)(void *, size_t);
static size_t (*_Atomic next_malloc_usable_size)(void *);

/* Whether an address is in torch's core library. */
static bool in_torch(void *address) {
    struct dl_find_object object;
    if (_dl_find_object(address, &object)) return false;
    const char *slash = strrchr(object.dlfo_link_map->l_name, '/');
    return slash && !strcmp(slash, "/libc10.so");
}

/* One line on stderr without allocating. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char line[512];
    int n = snprintf(line, sizeof line, "simdevice: ");
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - n - 1, format, args);
    va_end(args);
    n = n + m < (int)sizeof line - 1 ? n + m : (int)sizeof line - 2;
    line[n++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, n); /* stderr itself is gone: nowhere left to say it */
    (void)ignored;
}

/* ---- load ---- */

static void resolve(void) {
    next_posix_memalign =
        (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    next_malloc_usable_size =
        (size_t (*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
}

static unsigned log2_ceil(size_t n) {
    return n <= 1 ? 0 : (unsigned)(8 * sizeof n) - (unsigned)__builtin_clzl(n - 1);
}

static void lock_all(void) {
    for (unsigned i = 0; i < device.classes_n; i++) pthread_mutex_lock(&device.classes[i].lock);
}

static void unlock_all(void) {
    for (unsigned i = device.classes_n; i-- > 0;) pthread_mutex_unlock(&device.classes[i].lock);
}

static void after_fork_in_child(void) {
    for (unsigned i = 0; i < device.classes_n; i++) {
        struct size_class *class = &device.classes[i];
        for (uint32_t slot = 0; slot < class->unused; slot++) {
            size_t bytes = atomic_load(&class->slots[slot].bytes);
            char *block = class->base + ((size_t)slot << class->shift);
            if (bytes && mprotect(block, bytes, PROT_READ))
                say("%zu bytes inherited by fork stay writable in process %d: %s", bytes, getpid(),
                    strerror(errno));
        }
    }
    unlock_all();
}

/* Reserves addresses for blocks of up to the whole device; false with errno. */
static bool reserve(void) {
    unsigned largest = log2_ceil(device.bytes < MIN_BYTES ? MIN_BYTES : device.bytes);
    unsigned classes_n = largest - MIN_SHIFT + 1;
    if (classes_n > MAX_CLASSES) return errno = E2BIG, false;
    device.region_shift = largest + 2;
    size_t region = (size_t)1 << device.region_shift, span = region * classes_n;
    size_t records = 2 * (region >> MIN_SHIFT) * sizeof(struct slot); /* halves from class to class */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

    struct slot *slots = mmap(NULL, records, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (slots == MAP_FAILED) return false;
    size_t alignment = (size_t)1 << largest; /* each block is aligned to its slot */
    char *base = mmap(NULL, span + alignment, PROT_NONE, flags, -1, 0);
    if (base == MAP_FAILED) return false;
    base = (char *)(((uintptr_t)base + alignment - 1) & ~(alignment - 1));

    for (unsigned i = 0; i < classes_n; i++) {
        struct size_class *class = &device.classes[i];
        pthread_mutex_init(&class->lock, NULL);
        class->shift = MIN_SHIFT + i;
        class->count = (uint32_t)(region >> class->shift);
        class->base = base + i * region;
        class->slots = slots;
        slots += class->count;
    }
    device.classes_n = classes_n;
    device.base = base;
    atomic_store(&device.span, span);
    return true;
}

static void load(void) {
    resolve();
    const char *directory = getenv("SIMDEVICE_DIR");
    struct statx at;
    struct statfs fs;
    char *why = device.unusable;
    size_t n = sizeof device.unusable;
    if (!directory || !*directory)
        snprintf(why, n, "SIMDEVICE_DIR is not set");
    else if (*directory != '/')
        snprintf(why, n, "SIMDEVICE_DIR=%.150s is not an absolute path", directory);
    else if (statx(AT_FDCWD, directory, 0, STATX_TYPE, &at) || statfs(directory, &fs))
        snprintf(why, n, "SIMDEVICE_DIR=%.150s: %s", directory, strerror(errno));
    else if (fs.f_type != TMPFS_MAGIC || !(at.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        snprintf(why, n, "SIMDEVICE_DIR=%.150s: no tmpfs is mounted there", directory);
    else if (!fs.f_blocks)
        snprintf(why, n, "SIMDEVICE_DIR=%.150s: the tmpfs has no size limit", directory);
    /* setproctitle writes over the environment: keep a copy. */
    else if (!(device.directory = strdup(directory)))
        snprintf(why, n, "SIMDEVICE_DIR=%.150s: %s", directory, strerror(errno));
    else {
        device.dev = makedev(at.stx_dev_major, at.stx_dev_minor);
        device.page = (size_t)sysconf(_SC_PAGESIZE);
        device.bytes = (size_t)fs.f_blocks * (size_t)fs.f_frsize;
        if (!reserve())
            snprintf(why, n, "no address space for a device of %zu bytes: %s", device.bytes,
                     strerror(errno));
        else if (pthread_atfork(lock_all, unlock_all, after_fork_in_child))
            snprintf(why, n, "pthread_atfork: %s", strerror(ENOMEM));
    }
}

__attribute__((constructor)) static void at_load(void) { pthread_once(&device.once, load); }

/* ---- blocks ---- */

/* Puts the reservation back over a slot's first bytes, which drops this process's mapping of a block. */
static bool clear(char *block, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(block, bytes, PROT_NONE, flags, -1, 0) != MAP_FAILED) return true;
    say("%zu bytes at %p cannot be given back and stay in use: %s", bytes, (void *)block, strerror(errno));
    return false;
}

static struct slot *take_slot(struct size_class *class, char **block) {
    struct slot *slot = NULL;
    pthread_mutex_lock(&class->lock);
    if (class->first_free) {
        slot = &class->slots[class->first_free - 1];
        class->first_free = slot->next_free;
    } else if (class->unused < class->count)
        slot = &class->slots[class->unused++];
    pthread_mutex_unlock(&class->lock);
    if (slot) *block = class->base + ((size_t)(slot - class->slots) << class->shift);
    return slot;
}

static void return_slot(struct size_class *class, struct slot *slot) {
    pthread_mutex_lock(&class->lock);
    slot->next_free = class->first_free;
    class->first_free = (uint32_t)(slot - class->slots) + 1;
    pthread_mutex_unlock(&class->lock);
}

/* A file of that many bytes on the device, with all its pages; -1 with errno. Closing it gives them back. */
static int device_file(size_t bytes) {
    struct stat at;
    int fd = open(device.directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) return -1;
    if (fstat(fd, &at) || at.st_dev != device.dev) { /* unmounted, or something else mounted there */
        close(fd);
        return errno = ENODEV, -1;
    }
    for (size_t done = 0; done < bytes;) {
        size_t step = bytes - done < STEP_BYTES ? bytes - done : STEP_BYTES;
        if (!fallocate(fd, 0, (off_t)done, (off_t)step)) {
            done += step;
        } else if (errno != EINTR) {
            int error = errno;
            close(fd);
            return errno = error, -1;
        }
    }
    return fd;
}

/* posix_memalign on the device: 0 or ENOMEM. */
static int allocate(void **out, size_t alignment, size_t n) {
    pthread_once(&device.once, load);
    if (*device.unusable) {
        if (!atomic_flag_test_and_set(&device.told))
            say("%s; torch's allocations of %zu bytes or more fail: "
                "name the device's tmpfs in SIMDEVICE_DIR",
                device.unusable, MIN_BYTES);
        return ENOMEM;
    }
    if (n > device.bytes || alignment > device.bytes) return ENOMEM;
    size_t bytes = (n + device.page - 1) & ~(device.page - 1);
    unsigned shift = log2_ceil(bytes > alignment ? bytes : alignment);
    struct size_class *class = &device.classes[shift - MIN_SHIFT];

    int fd = device_file(bytes);
    if (fd < 0) {
        if (errno != ENOSPC) say("%zu bytes not allocated: %s: %s", n, device.directory, strerror(errno));
        return ENOMEM;
    }
    char *block = NULL;
    struct slot *slot = take_slot(class, &block);
    void *mapped = MAP_FAILED;
    if (slot) {
        mapped = mmap(block, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        if (mapped == MAP_FAILED) {
            say("%zu bytes not allocated: mmap: %s", n, strerror(errno));
            if (clear(block, bytes)) return_slot(class, slot);
        }
    } else
        say("%zu bytes not allocated: all %u addresses for blocks of this size are taken", n, class->count);
    close(fd);
    if (mapped == MAP_FAILED) return ENOMEM;
    /* All pages in one call; where the kernel has none such (before 5.14) they come one by one. */
    madvise(block, bytes, MADV_POPULATE_WRITE);
    atomic_store(&slot->bytes, bytes);
    *out = block;
    return 0;
}

static bool ours(const void *p) {
    size_t span = atomic_load_explicit(&device.span, memory_order_acquire);
    return span && (size_t)((const char *)p - device.base) < span;
}

/* The class and the record of one of our blocks; ends the process when p is none, as glibc does. */
static struct slot *find(const char *p, struct size_class **class, const char *caller) {
    *class = &device.classes[(size_t)(p - device.base) >> device.region_shift];
    size_t offset = (size_t)(p - (*class)->base);
    struct slot *slot = &(*class)->slots[offset >> (*class)->shift];
    if (offset & (((size_t)1 << (*class)->shift) - 1) || !atomic_load(&slot->bytes)) {
        say("%s(%p): no such block, or freed already", caller, (const void *)p);
        abort();
    }
    return slot;
}

static void release(char *p) {
    int error = errno; /* free keeps errno */
    struct size_class *class;
    struct slot *slot = find(p, &class, "free");
    size_t bytes = atomic_exchange(&slot->bytes, 0);
    if (!bytes) {
        say("free(%p): freed by two threads at once", (void *)p);
        abort();
    }
    if (clear(p, bytes)) return_slot(class, slot);
    errno = error;
}

/* ---- what the program calls ---- */

EXPORT int posix_memalign(void **out, size_t alignment, size_t n) {
    if (n < MIN_BYTES || !in_torch(__builtin_return_address(0))) {
        if (!next_posix_memalign) resolve();
        return next_posix_memalign(out, alignment, n);
    }
    if (alignment < sizeof(void *) || alignment & (alignment - 1)) return EINVAL;
    int error = errno; /* posix_memalign returns its error and leaves errno alone */
    int rc = allocate(out, alignment, n);
    errno = error;
    return rc;
}

EXPORT void free(void *p) {
    if (ours(p)) {
        release(p);
        return;
    }
    if (!next_free) resolve();
    next_free(p);
}

EXPORT size_t malloc_usable_size(void *p) {
    struct size_class *class;
    if (ours(p)) return atomic_load(&find(p, &class, "malloc_usable_size")->bytes);
    if (!next_malloc_usable_size) resolve();
    return next_malloc_usable_size(p);
}

/* A device block moves to a device block, or to the host when it shrinks under 64 KiB. */
EXPORT void *realloc(void *p, size_t n) {
    if (!ours(p)) {
        if (!next_realloc) resolve();
        return next_realloc(p, n);
    }
    struct size_class *class;
    size_t bytes = atomic_load(&find(p, &class, "realloc")->bytes);
    if (n == 0) return release(p), NULL;
    if (n <= bytes && n > bytes - device.page) return p;
    void *moved = NULL;
    if (n < MIN_BYTES)
        moved = malloc(n);
    else if (allocate(&moved, sizeof(void *), n))
        errno = ENOMEM;
    if (!moved) return NULL;
    memcpy(moved, p, n < bytes ? n : bytes);
    release(p);
    return moved;
}
