// watch_hooks.cpp   what the compiler calls before each access (-fsanitize=thread), handed on to watch.cpp
#include "watch.h"

namespace watch = emulated::watch;
#define HERE __builtin_return_address(0)
#define WATCH(p, n, writing) if (watch::is_inside(p)) watch::seen(p, n, writing, HERE);
#define SEEN(n)                                                                                  \
    void __tsan_read##n(void* p) { WATCH(p, n, false) }                                          \
    void __tsan_unaligned_read##n(void* p) { WATCH(p, n, false) }                                \
    void __tsan_write##n(void* p) { WATCH(p, n, true) }                                          \
    void __tsan_unaligned_write##n(void* p) { WATCH(p, n, true) }
#define SEQUENTIAL __ATOMIC_SEQ_CST
#define HOSTS(bits, T, name, call)                                                               \
    T __tsan_atomic##bits##_##name(volatile T* p, T x, int) { return call(p, x, SEQUENTIAL); }
#define HOSTS_EXCHANGE(bits, T, name, is_weak)                                                   \
    int __tsan_atomic##bits##_##name(volatile T* p, T* expected, T x, int, int) {                \
        return __atomic_compare_exchange_n(p, expected, x, is_weak, SEQUENTIAL, SEQUENTIAL);     \
    }
#define ATOMIC(bits, T)                                                                          \
    T __tsan_atomic##bits##_load(const volatile T* p, int order) {                               \
        watch::seen_atomic((void*)p, sizeof(T), order != __ATOMIC_RELAXED, false, HERE, true);   \
        return __atomic_load_n(p, SEQUENTIAL);                                                   \
    }                                                                                            \
    void __tsan_atomic##bits##_store(volatile T* p, T x, int order) {                            \
        watch::seen_atomic((void*)p, sizeof(T), false, order != __ATOMIC_RELAXED, HERE, false);  \
        __atomic_store_n(p, x, SEQUENTIAL);                                                      \
    }                                                                                            \
    T __tsan_atomic##bits##_fetch_add(volatile T* p, T x, int) {                                 \
        watch::seen_atomic((void*)p, sizeof(T), false, false, HERE, false);                      \
        return __atomic_fetch_add(p, x, SEQUENTIAL);                                             \
    }                                                                                            \
    HOSTS(bits, T, exchange, __atomic_exchange_n)                                                \
    HOSTS(bits, T, fetch_sub, __atomic_fetch_sub)                                                \
    HOSTS(bits, T, fetch_or, __atomic_fetch_or)                                                  \
    HOSTS_EXCHANGE(bits, T, compare_exchange_strong, false)                                      \
    HOSTS_EXCHANGE(bits, T, compare_exchange_weak, true)

extern "C" {
SEEN(1) SEEN(2) SEEN(4) SEEN(8) SEEN(16)
ATOMIC(8, uint8_t) ATOMIC(16, uint16_t) ATOMIC(32, uint32_t) ATOMIC(64, uint64_t)
void __tsan_read_range(void* p, unsigned long n) { WATCH(p, n, false) }
void __tsan_write_range(void* p, unsigned long n) { WATCH(p, n, true) }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(SEQUENTIAL); }
void __tsan_atomic_signal_fence(int) {}
void __tsan_init() {}
}
