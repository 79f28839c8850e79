// cuda_on_cpu.h   CUDA kernels executed by g++: a device for checking, not a fast one
//   A block runs on one OS thread; each of its CUDA threads runs on a fiber, and OpenMP spreads the blocks
//   over the cores. A fiber goes on to the block's next thread until one blocks, so that a kernel without
//   barriers never switches. What it is strict about:
//     order     threads and blocks run in an order shuffled by emulated::seed
//     memory    cudaMalloc and shared memory start as 0xFF bytes: NaN as a float, -1 as an int
//     barriers  __syncthreads() or a warp collective that not all threads reach is an Error that names
//               kernel, block and thread; so is a shuffle by a lane outside its own mask, and one whose lanes
//               stand at different calls
//     launches  grid, block and shared memory are what a device of sm_90 takes
//     bounds    every allocation and shared array is one of the heap's, so AddressSanitizer sees each access
//   Streams and events: streams_on_cpu.h. With SANITIZE=thread all accesses are watched: watch.h.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <vector>
#include "check.h"
#include "fiber.h"
#include "watch.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

using Site = std::source_location;  // of a call in a kernel

constexpr size_t usual_shared = 48 << 10;                              // bytes of a block's shared memory
inline size_t largest_shared = 227 << 10;                              // those of an H100's
inline std::map<const void*, size_t> allowed_shared;                   // dynamic, by kernel
inline bool executes = true;                                           // else launches are only checked
inline bool has_failed = false;                                        // a block of this launch

// of the order in which blocks, threads and streams run; of whole programs: EMULATED_SEED=N
inline unsigned seed = getenv("EMULATED_SEED") ? (unsigned)atoi(getenv("EMULATED_SEED")) : 1;

inline uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

inline void shuffle(std::vector<int>& order, int n, uint64_t key) {
    order.resize(n);
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) std::swap(order[i], order[mix(key + i) % (i + 1)]);
}

// ---- one block in execution, on one OS thread ------------------------------------------------------------

struct Thread {
    enum State { Fresh, Ready, AtBlock, AtWarp, Done } state = Fresh;
    dim3 index;
    Fiber* fiber = nullptr;
    void* deposit = nullptr;  // what this lane brought to the warp collective it waits in
    Site site;                // that collective, and its lanes
    unsigned mask = 0;
};

struct Warp {
    unsigned arrived = 0;
    uint16_t turn = 0;  // __syncwarp() that it has passed
};

// an array of a block's: an allocation of its own, or one place after another where accesses are watched
struct Shared {
    const void* key;
    bool poisoned;
    size_t bytes_count;
    std::unique_ptr<char[]> own;
    char* bytes;
    Shared(const void* key, size_t n, size_t before) : key(key), poisoned(false), bytes_count(n) {
        if (!watch::on) own = std::make_unique<char[]>(n);
        bytes = watch::on ? watch::shared_memory() + (before + 15) / 16 * 16 : own.get();
    }
    void poison() {
        if (!poisoned) memset(bytes, 0xFF, bytes_count);
        poisoned = true;
    }
};

struct Copy {  // that a thread has begun
    void* to;
    const void* from;  // null: zeros
    size_t bytes;
};

struct Worker {
    Context scheduler;
    std::vector<std::unique_ptr<Fiber>> fibers;  // pointers: a fiber must not move
    std::vector<Fiber*> idle;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<int> order, ready;
    std::vector<Shared> shared;
    Shared dynamic_shared{nullptr, 0, 0};
    const std::function<void()>* body = nullptr;
    const char* kernel = "";
    const void* kernel_address = nullptr;
    size_t allowed = 0;  // dynamic shared memory, bytes
    // copies that a thread has begun: the finished groups, and last the open one
    std::vector<std::deque<std::vector<Copy>>> copies;
    int next_fresh = 0, current = -1, at_block = 0, done = 0;
    uint64_t key = 0;
    std::string error;

    std::string where(int t) const {
        return text("kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", kernel, blockIdx.x, blockIdx.y,
                    blockIdx.z, threads[t].index.x, threads[t].index.y, threads[t].index.z);
    }
    void enter(int t, Fiber* fiber) {
        current = t;
        threads[t].fiber = fiber;
        threadIdx = threads[t].index;
    }
    void wait() {  // leave the running thread; another makes it Ready again
        int t = current;
        switch_context(*threads[t].fiber, scheduler);
        enter(t, threads[t].fiber);
    }
    void release(int t) {
        threads[t].state = Thread::Ready;
        ready.push_back(t);
    }
    [[noreturn]] void stop() {  // from inside a kernel, `error` being set: its fiber never goes on
        switch_context(*threads[current].fiber, scheduler);
        abort();
    }
    void block_barrier() {
        if (++at_block < (int)threads.size()) {
            threads[current].state = Thread::AtBlock;
            return wait();
        }
        at_block = 0;
        watch::block_barrier();
        for (int t = 0; t < (int)threads.size(); t++) if (t != current) release(t);
    }
    void run_block(uint64_t block_key);
};

inline thread_local Worker* worker = nullptr;

inline void fiber_main() {
    Worker& w = *worker;
    Fiber* self = w.idle.back();
    w.idle.pop_back();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &w.scheduler.stack, &w.scheduler.size);
#endif
    for (;;) {
        while (w.next_fresh < (int)w.threads.size()) {
            int t = w.order[w.next_fresh++];
            w.enter(t, self);
            try {
                (*w.body)();
            } catch (const std::exception& e) {
                w.error = w.where(w.current) + ": " + e.what();
            }
            if (!w.error.empty()) w.stop();
            w.threads[w.current].state = Thread::Done;
            w.done++;
        }
        w.idle.push_back(self);
        switch_context(*self, w.scheduler);
        w.idle.pop_back();  // the scheduler resumes the fiber it finds at the back
    }
}

inline void Worker::run_block(uint64_t block_key) {
    key = block_key;
    unsigned n = blockDim.x * blockDim.y * blockDim.z;
    threads.assign(n, Thread());
    copies.assign(n, {{}});
    warps.assign((n + 31) / 32, Warp());
    for (unsigned t = 0; t < n; t++)
        threads[t].index = dim3(t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y);
    shuffle(order, n, key);
    for (auto& s : shared) s.poisoned = false;
    dynamic_shared.poisoned = false;
    dynamic_shared.poison();
    ready.clear();
    next_fresh = at_block = done = 0;
    for (uint64_t turn = 0; error.empty(); turn++) {
        if (!ready.empty()) {
            std::swap(ready[mix(key ^ (turn << 20)) % ready.size()], ready.back());
            int t = ready.back();
            ready.pop_back();
            switch_context(scheduler, *threads[t].fiber);
        } else if (next_fresh < (int)n) {
            if (idle.empty()) {
                fibers.push_back(std::make_unique<Fiber>(fiber_main));
                idle.push_back(fibers.back().get());
            }
            switch_context(scheduler, *idle.back());
        } else {
            break;
        }
    }
    if (error.empty() && done < (int)n) {
        int stuck = 0;
        while (threads[stuck].state == Thread::Done) stuck++;
        error = where(stuck) + text(" waits for ever: %u of %u threads never reach its %s", done, n,
                                    threads[stuck].state == Thread::AtBlock ? "__syncthreads()"
                                        : "warp collective");
    }
    if (!error.empty()) {  // parked fibers hold half a kernel: enqueue them up
        idle.clear();
        fibers.clear();
    }
}

// every lane of mask brings its Args; the last to arrive runs `all` over them, then all go on
template <class Args>
void warp_collective(unsigned mask, Args& mine, Site site, void (*all)(Args* lanes[32], unsigned mask)) {
    Worker& w = *worker;
    int t = w.current, lane = t % 32, first = t - lane;
    if (!(mask >> lane & 1)) {
        w.error = w.where(t) + text(": lane %d is not in its own mask %08x", lane, mask);
        w.stop();
    }
    Warp& warp = w.warps[t / 32];
    for (unsigned others = warp.arrived & mask; others; others &= others - 1) {
        const Thread& other = w.threads[first + __builtin_ctz(others)];
        bool is_same = other.site.line() == site.line() && other.site.column() == site.column();
        if (is_same || !(other.mask >> lane & 1)) continue;  // or it waits for others than this one
        w.error = w.where(t) + text(": lanes of one warp are in different collectives, lines %u and %u",
                                    site.line(), other.site.line());
        w.stop();
    }
    w.threads[t].deposit = &mine;
    w.threads[t].site = site;
    w.threads[t].mask = mask;
    warp.arrived |= 1u << lane;
    if ((warp.arrived & mask) != mask) {
        w.threads[t].state = Thread::AtWarp;
        return w.wait();
    }
    Args* lanes[32];
    for (int i = 0; i < 32; i++) lanes[i] = mask >> i & 1 ? (Args*)w.threads[first + i].deposit : nullptr;
    all(lanes, mask);
    warp.arrived &= ~mask;
    for (int i = 0; i < 32; i++) if (i != lane && mask >> i & 1) w.release(first + i);
}

inline void* shared_array(const void* key, size_t bytes) {
    for (auto& s : worker->shared) {
        if (s.key != key) continue;
        s.poison();
        return s.bytes;
    }
    size_t all = bytes, dynamic = worker->dynamic_shared.bytes_count;
    for (auto& s : worker->shared) all += s.bytes_count;
    size_t most = worker->allowed > usual_shared ? largest_shared : usual_shared;
    if (all > usual_shared || all + dynamic > most)
        fail("kernel %s: %zu bytes of shared memory and %zu dynamic ones: a block has %zu, or after "
             "allow_shared %zu", worker->kernel, all, dynamic, usual_shared, largest_shared);
    worker->shared.emplace_back(key, bytes, dynamic + all - bytes + 16 * worker->shared.size());
    worker->shared.back().poison();
    return worker->shared.back().bytes;
}

// copies from global to shared memory, which are done when the thread waits for them, and not before
inline void begin_copy(void* to, const void* from, size_t bytes) {
    worker->copies[worker->current].back().push_back({to, from, bytes});
    watch::begin_copy(to, from, bytes);
}
inline void finish_copies(size_t groups_left) {
    auto& mine = worker->copies[worker->current];
    for (; mine.size() > groups_left + 1; mine.pop_front())
        for (Copy& c : mine.front()) {
            if (c.from) memcpy(c.to, c.from, c.bytes);
            else memset(c.to, 0, c.bytes);
            watch::finish_copy(c.to, c.from, c.bytes);
        }
}

struct Kernel {
    const char* name;
    const void* address;
};

// a turn of a loop that ends when another block has got somewhere
inline void wait_for_another_block() {
    if (__atomic_load_n(&has_failed, __ATOMIC_RELAXED)) fail("waits for a block that failed");
    if (watch::on) fail("waits for a block that has not begun, and might never");
}

inline void launch(Kernel of, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
    const char* kernel = of.name;
    unsigned threads = block.x * block.y * block.z;
    if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 ||
        grid.z > 65535)
        fail("kernel %s: launched with grid (%u,%u,%u) and block (%u,%u,%u): a block has 1 to 1024 threads, "
             "grid.y and grid.z 1 to 65535", kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z);
    auto found = allowed_shared.find(of.address);
    size_t allowed = found == allowed_shared.end() ? 0 : found->second;
    if (shared_bytes > std::max(usual_shared, allowed))
        fail("kernel %s: launched with %zu bytes of dynamic shared memory: %zu are allowed: call "
             "allow_shared first", kernel, shared_bytes, std::max(usual_shared, allowed));
    if (!executes) return;
    int blocks = grid.x * grid.y * grid.z;
    std::vector<int> order;
    shuffle(order, blocks, mix(seed) ^ 0xB10C);
    std::string error;
    has_failed = false;
    watch::begin_launch();
    #pragma omp parallel for schedule(dynamic) if(!watch::on)
    for (int i = 0; i < blocks; i++) {
        if (__atomic_load_n(&has_failed, __ATOMIC_RELAXED)) continue;
        static thread_local Worker mine;
        worker = &mine;
        mine.body = &body;
        mine.kernel = kernel;
        mine.error.clear();
        if (mine.kernel_address != of.address) mine.shared.clear();
        mine.kernel_address = of.address;
        mine.allowed = allowed;
        if (mine.dynamic_shared.bytes_count != shared_bytes) {
            mine.shared.clear();
            mine.dynamic_shared = Shared(nullptr, shared_bytes, 0);
        }
        blockDim = block;
        gridDim = grid;
        blockIdx = dim3(order[i] % grid.x, order[i] / grid.x % grid.y, order[i] / grid.x / grid.y);
        watch::begin_block();
        mine.run_block(mix(seed) ^ mix(order[i]));
        watch::end_block();
        #pragma omp critical
        if (error.empty()) error = mine.error;
        if (!mine.error.empty()) __atomic_store_n(&has_failed, true, __ATOMIC_RELAXED);
    }
    if (!error.empty()) throw Error(error);
}

}  // namespace emulated

// ---- what kernels call -----------------------------------------------------------------------------------

inline void __syncthreads() { emulated::worker->block_barrier(); }

inline void __syncwarp(unsigned mask = 0xffffffffu, emulated::Site site = emulated::Site::current()) {
    struct Args {} mine;
    if (emulated::watch::on && mask != 0xffffffffu) fail("__syncwarp of some lanes is not watched");
    emulated::warp_collective<Args>(mask, mine, site, [](Args**, unsigned) {
        emulated::worker->warps[emulated::worker->current / 32].turn++;
    });
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              emulated::Site site = emulated::Site::current()) {
    struct Args { T value, result; int source; };
    int lane = emulated::worker->current % 32;
    Args mine = {value, value, (lane & ~(width - 1)) | (source & (width - 1))};
    emulated::warp_collective<Args>(mask, mine, site, [](Args* lanes[32], unsigned) {
        for (int i = 0; i < 32; i++)
            if (lanes[i] && lanes[lanes[i]->source]) lanes[i]->result = lanes[lanes[i]->source]->value;
    });
    return mine.result;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  emulated::Site site = emulated::Site::current()) {
    return __shfl_sync(mask, value, (emulated::worker->current % 32) ^ lanes, width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32,
                   emulated::Site site = emulated::Site::current()) {
    int lane = emulated::worker->current % width;
    return __shfl_sync(mask, value, lane + delta < width ? lane + delta : lane, width, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              emulated::Site site = emulated::Site::current()) {
    struct Args { int predicate; unsigned result; } mine = {predicate, 0};
    emulated::warp_collective<Args>(mask, mine, site, [](Args* lanes[32], unsigned) {
        unsigned votes = 0;
        for (int i = 0; i < 32; i++) if (lanes[i] && lanes[i]->predicate) votes |= 1u << i;
        for (int i = 0; i < 32; i++) if (lanes[i]) lanes[i]->result = votes;
    });
    return mine.result;
}
inline int __any_sync(unsigned mask, int predicate, emulated::Site site = emulated::Site::current()) {
    return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, emulated::Site site = emulated::Site::current()) {
    return __ballot_sync(mask, predicate, site) == mask;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

template <class T>
T atomicAdd(T* address, T value) {  // integers only: float atomics would make runs differ
    static_assert(std::is_integral_v<T>);
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
