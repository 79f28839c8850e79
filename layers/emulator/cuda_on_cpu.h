// cuda_on_cpu.h   CUDA kernels executed by g++: a device for checking, not for speed
//   A block runs on one OS thread, and OpenMP spreads the blocks over the cores. A fiber runs one of the
//   block's CUDA threads after another; if a thread blocks, it keeps the fiber, and a new fiber runs the next
//   threads. So a kernel without barriers never switches. What is checked, or made visible:
//     order     threads and blocks run in an order shuffled by emulated::seed
//     memory    cudaMalloc and shared memory start as 0xFF bytes: NaN as a float, -1 as an int
//     barriers  __syncthreads() or a warp collective that not all threads reach is a Defect that names
//               kernel, block and thread; so is a shuffle by a lane outside its own mask, or by lanes at
//               different calls
//     launches  grid, block and shared memory must be within the limits of sm_90
//     bounds    every allocation and shared array is on the heap, so that AddressSanitizer sees each access
//   Streams and events: streams_on_cpu.h. With SANITIZE=thread all accesses are watched: watch.h.
#pragma once
#include <omp.h>
#include <algorithm>
#include <map>
#include <mutex>
#include "block_on_cpu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace emulated {

// accesses to several values at once: on a device, an address not aligned to all of them ends the kernel
template <class V>
void check_aligned(const V* p) {
    if ((uintptr_t)p % alignof(V))
        fail("kernel %s: an access of %zu bytes at %p, not aligned to %zu", worker->kernel, sizeof(V),
             (const void*)p, alignof(V));
}

template <class V>
[[gnu::always_inline]] inline V load_whole(const V* p) {
    check_aligned(p);
#if defined(WATCHED)
    V v;
    watch::load(&v, p, sizeof v);
    return v;
#else
    return *p;
#endif
}

template <class V>
[[gnu::always_inline]] inline void store_whole(V* p, const V& v) {
    check_aligned(p);
#if defined(WATCHED)
    watch::store(p, &v, sizeof v);
#else
    memcpy((void*)p, (const void*)&v, sizeof v);  // not value by value, as bf16's own assignment would
#endif
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

// asynchronous copies from global to shared memory: executed only when the thread waits for them
inline void begin_copy(void* to, const void* from, size_t bytes) {
    worker->copies_of_thread().back().push_back({to, from, bytes});
    watch::begin_copy(to, from, bytes);
}

inline void finish_copies(size_t groups_left) {
    auto& mine = worker->copies_of_thread();
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

// Blocks that wait for another block's publish(). If every OS thread that still has blocks to run has checked
// its counter in vain since the last publish(), there will be no other: a deadlock
struct BlockWaits {
    std::mutex guard;
    int running = 0;  // OS threads that still have blocks to run
    long published = 0;
    std::map<const Worker*, long> in_vain;  // by waiting worker: `published` before a thread checked

    long published_so_far() { return __atomic_load_n(&published, __ATOMIC_ACQUIRE); }
    void publish() { __atomic_fetch_add(&published, 1, __ATOMIC_RELEASE); }
    void start(int threads) {
        running = threads;
        in_vain.clear();
    }

    void stop_running() {
        std::lock_guard lock(guard);
        running--;
    }

    void stop_waiting() {
        std::lock_guard lock(guard);
        in_vain.erase(worker);
    }

    // before: what had been published before this block looked
    void look_again(long before) {
        if (__atomic_load_n(&has_failed, __ATOMIC_RELAXED)) fail("waits for a block that failed");
        if (watch::on) fail("waits for a block that has not begun, and might never");
        std::lock_guard lock(guard);
        in_vain[worker] = before;
        long now = published_so_far();
        auto is_stuck = [&](auto& waiting) { return waiting.second == now; };
        if ((int)in_vain.size() == running && std::all_of(in_vain.begin(), in_vain.end(), is_stuck))
            fail("waits for what no block will publish: all that are left wait too");
    }
};
inline BlockWaits block_waits;

// the dynamic shared memory that a kernel may have
inline size_t check_launch(Kernel of, dim3 grid, dim3 block, size_t shared_bytes) {
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
    return allowed;
}

inline void launch(Kernel of, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
    size_t allowed = check_launch(of, grid, block, shared_bytes);
    if (!executes) return;

    int blocks = grid.x * grid.y * grid.z;
    std::vector<int> order;
    shuffle(order, blocks, mix(seed) ^ 0xB10C);
    std::string error;
    has_failed = false;
    watch::begin_launch();
    launches++;

    auto run_one = [&](int number) {
        if (number < first_block || __atomic_load_n(&has_failed, __ATOMIC_RELAXED)) return;
        static thread_local Worker mine;
        worker = &mine;
        mine.body = &body;
        mine.kernel = of.name;
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
        blockIdx = dim3(number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y);

        watch::begin_block();
        mine.run_block(mix(seed) ^ mix(number));
        watch::end_block();

        #pragma omp critical
        if (error.empty()) error = mine.error;
        if (!mine.error.empty()) __atomic_store_n(&has_failed, true, __ATOMIC_RELAXED);
    };

    #pragma omp parallel if(!watch::on)
    {
        #pragma omp single
        block_waits.start(omp_get_num_threads());
        #pragma omp for schedule(dynamic) nowait
        for (int i = 0; i < blocks; i++) run_one(order[i]);
        block_waits.stop_running();
    }

    if (!error.empty()) throw Defect(error);
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

template <class T>
T atomicAdd(T* address, T value) {  // integers only: float atomics would make runs differ
    static_assert(std::is_integral_v<T>);
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
