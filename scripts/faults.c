// faults.c   for scripts/test_faults.py: system calls that are slow or fail, by LD_PRELOAD
//   gcc -shared -fPIC -o faults.so faults.c -ldl;  LD_PRELOAD=faults.so mpirun …
//   FAULT_RANK      the ranks that it happens to, with commas (by OMPI_COMM_WORLD_RANK; without mpirun 0)
//   FAULT_PATH      only files whose path contains this
//   FSYNC_SECONDS   an fsync takes so long
//   FSYNC_LOG       a file that gets a line for each fsync: the path of what is synchronised
//   PREAD_SECONDS   a pread takes so long; with PREAD_FILE while that file is there
//   PREAD_FAILS     every pread fails with EIO
//   PWRITE_FAILS    so many calls of pwrite fail with EIO
//   FLOCK_FAILS     the file system has no locks: flock fails with ENOSYS
//   PWRITE_FLIPS    so many calls of pwrite write another last byte
//   MEMORY_LOG      where a rank's large pieces of memory lie: PATH.RANK gets a line `address bytes` for each
//   GEMM_SECONDS    a cblas_sgemm takes so much longer, from when the file GEMM_FILE is there
//   LATE_SECONDS    the rank sleeps so long before MPI makes the first group of its own
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_chosen(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *chosen = getenv("FAULT_RANK");
    for (; chosen; chosen = strchr(chosen, ',') ? strchr(chosen, ',') + 1 : NULL)
        if (atoi(chosen) == (rank ? atoi(rank) : 0)) return 1;
    return 0;
}
static const char* path_of(int fd, char (*path)[4096]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, *path, sizeof *path - 1);
    (*path)[n < 0 ? 0 : n] = 0;
    return *path;
}
static int is_chosen_file(int fd) {
    const char* part = getenv("FAULT_PATH");
    char path[4096];
    return is_chosen() && (!part || strstr(path_of(fd, &path), part));
}
static void pause_for(const char* name) {
    const char* time = getenv(name);
    if (time) usleep((useconds_t)(atof(time) * 1e6));
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (getenv("FSYNC_SECONDS") && is_chosen_file(fd)) pause_for("FSYNC_SECONDS");
    const char* log = getenv("FSYNC_LOG");
    FILE* file = log && is_chosen_file(fd) ? fopen(log, "a") : NULL;
    if (file) {
        char path[4096];
        fprintf(file, "%s\n", path_of(fd, &path));
        fclose(file);
    }
    return real(fd);
}
ssize_t pread(int fd, void* to, size_t n, off_t at) {
    ssize_t (*real)(int, void*, size_t, off_t) = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    const char* while_there = getenv("PREAD_FILE");
    int is_slow = getenv("PREAD_SECONDS") && (!while_there || !access(while_there, F_OK));
    if (is_slow && is_chosen_file(fd)) pause_for("PREAD_SECONDS");
    if (getenv("PREAD_FAILS") && is_chosen_file(fd)) {
        errno = EIO;
        return -1;
    }
    return real(fd, to, n, at);
}
ssize_t pread64(int fd, void* to, size_t n, off_t at) { return pread(fd, to, n, at); }
ssize_t pwrite(int fd, const void* from, size_t n, off_t at) {
    static int failures = 0, flips = 0;
    ssize_t (*real)(int, const void*, size_t, off_t) =
        (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    const char* fails = getenv("PWRITE_FAILS");
    if (fails && is_chosen_file(fd) && failures++ < atoi(fails)) {
        errno = EIO;
        return -1;
    }
    const char* flipped = getenv("PWRITE_FLIPS");
    if (flipped && n && is_chosen_file(fd) && flips++ < atoi(flipped)) {
        char last = ((const char*)from)[n - 1] ^ 1;
        ssize_t before = n > 1 ? real(fd, from, n - 1, at) : 0;
        return before == (ssize_t)n - 1 && real(fd, &last, 1, at + before) == 1 ? (ssize_t)n : -1;
    }
    return real(fd, from, n, at);
}
ssize_t pwrite64(int fd, const void* from, size_t n, off_t at) { return pwrite(fd, from, n, at); }

int flock(int fd, int operation) {
    int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");
    if (!getenv("FLOCK_FAILS") || !is_chosen_file(fd)) return real(fd, operation);
    errno = ENOSYS;
    return -1;
}

int posix_memalign(void** p, size_t alignment, size_t n) {
    int (*real)(void**, size_t, size_t) = (int (*)(void**, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    int result = real(p, alignment, n);
    const char *log = getenv("MEMORY_LOG"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!log || alignment != 4096 || result) return result;
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", log, rank ? rank : "0");
    FILE* file = fopen(path, "a");
    if (!file) return result;
    fprintf(file, "%zu %zu\n", (size_t)*p, n);
    fclose(file);
    return result;
}

typedef void Gemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*,
                  int);
void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                 const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc) {
    Gemm* real = (Gemm*)dlsym(RTLD_NEXT, "cblas_sgemm");
    const char* begin = getenv("GEMM_FILE");
    if (begin && is_chosen() && !access(begin, F_OK)) pause_for("GEMM_SECONDS");
    real(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

// called by every rank before the first group is made
int MPI_Comm_split_type(void* comm, int type, int key, void* info, void** out) {
    int (*real)(void*, int, int, void*, void**) =
        (int (*)(void*, int, int, void*, void**))dlsym(RTLD_NEXT, "MPI_Comm_split_type");
    int result = real(comm, type, key, info, out);
    if (is_chosen()) pause_for("LATE_SECONDS");
    return result;
}
