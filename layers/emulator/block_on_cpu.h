// block_on_cpu.h   executes one block of a kernel on one OS thread: the block's threads are fibers
//   Implements their barriers and warp collectives; emulated::seed determines which thread runs next.
//   cuda_on_cpu.h lists what is checked.
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
#include "../base/check.h"
#include "fiber.h"
#include "watch.h"

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
constinit inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

using Site = std::source_location;  // source location of a call in a kernel

constexpr size_t usual_shared = 48 << 10;                              // bytes that a block has by default
inline size_t largest_shared = 227 << 10;                              // bytes at most, as on an H100
inline std::map<const void*, size_t> allowed_shared;                   // dynamic, by kernel
inline int first_block = 0;                                            // those before it are left out
inline bool executes = true;                                           // if not, launches are only checked
inline bool has_failed = false;                                        // a block of this launch has failed

// determines the order in which blocks, threads and streams run; for whole programs: EMULATED_SEED=N
inline unsigned seed = getenv("EMULATED_SEED") ? (unsigned)atoi(getenv("EMULATED_SEED")) : 1;
inline uint64_t launches = 0;  // kernels so far

inline uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// one of 0 … n - 1: a multiplication, cheaper than a division
inline size_t below(size_t n, uint64_t luck) {
    return (unsigned __int128)luck * n >> 64;
}

inline void shuffle(std::vector<int>& order, int n, uint64_t key) {
    order.resize(n);
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) std::swap(order[i], order[below(i + 1, mix(key + i))]);
}

// ---- one block in execution, on one OS thread ------------------------------------------------------------

struct Thread {
    enum State { Fresh, Ready, AtBlock, AtWarp, AtMbarrier, AtNamed, AtTurn, Done } state = Fresh;
    const void* mbarrier = nullptr;  // the one it waits at
    int barriers = 0;                // passed so far: __syncthreads() and named ones
    const int* turn = nullptr;       // the counter it last waited for; below: its value and `barriers` then
    int turn_value = 0, turn_barriers = 0;
    bool bulk_is_done = false;       // its bulk copies have arrived since then
    long turn_known = 0;             // the latest wait_until that it knows of: its own, or by barriers
    dim3 index;
    Fiber* fiber = nullptr;
    void* deposit = nullptr;  // this lane's arguments for the warp collective it waits in
    Site site;                // that collective's call; mask: its lanes
    unsigned mask = 0;
};

struct Warp {
    unsigned arrived = 0;   // lanes that wait in a collective
    int first = 0;          // the thread that came first of them
    bool is_mixed = false;  // they differ in the call or in its mask
    uint16_t turn = 0;      // how many __syncwarp() it has passed
};

// a __shared__ array: an allocation of its own or, where accesses are watched, part of one region
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

struct Copy {  // an asynchronous copy that a thread has started
    void* to;
    const void* from;  // null: zeros
    size_t bytes;
};

struct Bulk {  // an asynchronous copy from shared to global memory
    float* to;
    const float* from;
    int count;
    bool adds, is_committed;
    std::vector<float> values;  // once the source has been read
};

// what begins anew with each block
struct BlockState {
    std::vector<int> ready;
    int next_fresh = 0, at_block = 0, done = 0;
    uint64_t key = 0, turns = 0, draws = 0;

    // by thread, the copies it has started: committed groups, then the open one; empty before the first copy
    std::vector<std::deque<std::vector<Copy>>> copies;

    // asynchronous engines (hopper_on_cpu.h): pieces of copies in flight, wgmma products by warp
    std::vector<std::function<void()>> arriving, late;  // late: only when no thread can run
    std::map<int, std::shared_ptr<void>> products;
    bool mbarriers_unseen = false;  // not yet fenced for TMA

    std::map<int, std::vector<Bulk>> bulk;  // by thread
    long turns_known = 0;                   // numbers each wait_until
    std::map<int, long> latest_turn;        // by warpgroup, its threads' latest
    // pieces of 16 bytes written for wgmma or a bulk copy to read, each with the thread that wrote it. An
    // entry stays until that thread has passed a fence and then a barrier, or arrived at an mbarrier
    struct Written { int thread; bool is_fenced; };
    std::map<uint32_t, Written> written;
    struct NamedArrival { int thread; bool waits; };
    std::map<int, std::vector<NamedArrival>> named;  // by the named barrier

    // threads that wait for what another block publishes (turns.h), and how much had been published when the
    // first of them looked. They look again when no other thread can run, and now and then before
    std::vector<int> at_turn;
    long published_then = 0;
};

struct Worker : BlockState {
    Context scheduler;
    std::vector<std::unique_ptr<Fiber>> fibers;  // pointers: a fiber must not move
    std::vector<Fiber*> idle;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<int> order;

    std::vector<Shared> shared;
    Shared dynamic_shared{nullptr, 0, 0};

    const std::function<void()>* body = nullptr;
    const char* kernel = "";
    const void* kernel_address = nullptr;
    size_t allowed = 0;  // dynamic shared memory, bytes

    std::string (*describe_mbarrier)(const void*) = nullptr;
    void (*look_again)(long published_then) = nullptr;  // fails if it would be in vain for ever
    int current = -1;
    std::string error;

    uint64_t luck() { return mix(mix(key ^ launches) ^ ++draws << 40); }

    std::string where(int t) const {
        return text("kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", kernel, blockIdx.x, blockIdx.y,
                    blockIdx.z, threads[t].index.x, threads[t].index.y, threads[t].index.z);
    }

    void enter(int t, Fiber* fiber) {
        current = t;
        threads[t].fiber = fiber;
        threadIdx = threads[t].index;
    }

    void wait() {  // suspends the running thread until another one makes it Ready
        int t = current;
        Context& to = next();
        if (&to != threads[t].fiber) switch_context(*threads[t].fiber, to);
        enter(t, threads[t].fiber);
    }

    std::deque<std::vector<Copy>>& copies_of_thread() {
        if (copies.empty()) copies.assign(threads.size(), {{}});
        return copies[current];
    }

    void release(int t) {
        threads[t].state = Thread::Ready;
        ready.push_back(t);
    }

    [[noreturn]] void stop() {  // from inside a kernel, with `error` set: its fiber never resumes
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
        long turn_known = 0;
        for (Thread& t : threads) turn_known = std::max(turn_known, t.turn_known);
        for (Thread& t : threads) {
            t.barriers++;
            t.turn_known = turn_known;
        }
        for (int t = 0; t < (int)threads.size(); t++) if (t != current) release(t);
    }

    // with wgmma, one warpgroup or one warp runs far ahead of the others for a while
    size_t next_ready(uint64_t turn) {
        uint64_t luck = mix(key ^ (turn << 20));
        size_t usual = below(ready.size(), luck);
        if (products.empty()) return usual;
        uint64_t chosen = mix(key + turn / 4096);
        int together = chosen % 2 ? 128 : 32;
        int ahead = (int)((chosen >> 1) % ((threads.size() + (size_t)together - 1) / (size_t)together));
        for (int i = 0; i < 32; i++, luck = mix(luck))
            if (ready[luck % ready.size()] / together == ahead) return luck % ready.size();
        return usual;
    }

    void named_barrier(int id, int count, bool waits) {
        std::vector<NamedArrival>& here = named[id];
        here.push_back({current, waits});
        if ((int)here.size() < count) {
            if (!waits) return;
            threads[current].state = Thread::AtNamed;
            return wait();
        }
        long turn_known = 0;
        for (auto [t, waited] : here) turn_known = std::max(turn_known, threads[t].turn_known);
        for (auto [t, waited] : here) {
            threads[t].barriers++;
            threads[t].turn_known = std::max(threads[t].turn_known, waited ? turn_known : 0);
            release_written(t);
            if (waited && t != current) release(t);
        }
        here.clear();
    }

    void let_others_run() {  // until all of them wait, or for a while
        for (int turn = 0; turn < 20000 && !(ready.empty() && next_fresh == (int)threads.size()); turn++) {
            release(current);
            wait();
        }
    }

    void wait_for_turn(long published) {
        published_then = at_turn.empty() ? published : std::min(published_then, published);
        at_turn.push_back(current);
        threads[current].state = Thread::AtTurn;
        wait();
    }

    // idle: no other thread can run
    void let_turns_look(bool idle) {
        try {
            if (idle) look_again(published_then);
        } catch (const std::exception& e) {
            error = where(at_turn[0]) + ": " + e.what();
        }
        for (int t : at_turn) release(t);
        at_turn.clear();
    }

    void release_written(int t) {
        std::erase_if(written, [t](auto& w) { return w.second.thread == t && w.second.is_fenced; });
    }

    // some of what is in flight arrives, in any order
    void arrive(uint64_t luck) {
        if (arriving.empty()) arriving.swap(late);
        try {
            for (uint64_t n = 1 + luck % 64; n > 0 && !arriving.empty(); n--) {
                luck = mix(luck);
                std::swap(arriving[luck % arriving.size()], arriving.back());
                std::function<void()> piece = std::move(arriving.back());
                arriving.pop_back();
                piece();
            }
        } catch (const std::exception& e) {
            error = text("kernel %s: %s", kernel, e.what());
        }
    }

    Context& next();
    void run_block(uint64_t block_key);
};

constinit inline thread_local Worker* worker = nullptr;

inline void fiber_main() {
    Worker& w = *worker;
    Fiber* self = w.idle.back();
    w.idle.pop_back();
#if defined(__SANITIZE_ADDRESS__)
    Context from;
    __sanitizer_finish_switch_fiber(nullptr, &from.stack, &from.size);
    if (!w.scheduler.stack) {  // where the first fiber comes from
        w.scheduler.stack = from.stack;
        w.scheduler.size = from.size;
    }
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
        switch_context(*self, w.next());
        w.idle.pop_back();  // Worker::next resumes the fiber it finds at the back
    }
}

// the fiber that runs next (a new one for a thread that has not begun); the scheduler if none can run
inline Context& Worker::next() {
    int n = (int)threads.size();
    while (error.empty() && done < n) {
        uint64_t turn = turns++;
        bool all_wait = ready.empty() && next_fresh == n;

        if (all_wait ? !arriving.empty() || !late.empty()
                     : !arriving.empty() && mix(key ^ (turn << 24)) % 4 == 0) {
            arrive(mix(key + turn));
        } else if (!at_turn.empty() && (all_wait || mix(key + turn) % 64 == 0)) {
            let_turns_look(all_wait);
        } else if (!ready.empty()) {
            std::swap(ready[next_ready(turn)], ready.back());
            int t = ready.back();
            ready.pop_back();
            return *threads[t].fiber;
        } else if (next_fresh < n) {
            if (idle.empty()) {
                fibers.push_back(std::make_unique<Fiber>(fiber_main, fibers.size()));
                idle.push_back(fibers.back().get());
            }
            return *idle.back();
        } else {
            break;
        }
    }
    return scheduler;
}

inline void Worker::run_block(uint64_t block_key) {
    (BlockState&)*this = {};
    key = block_key;
    unsigned n = blockDim.x * blockDim.y * blockDim.z;
    threads.assign(n, Thread());
    warps.assign((n + 31) / 32, Warp());
    for (unsigned t = 0; t < n; t++)
        threads[t].index = dim3(t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y);

    shuffle(order, n, key);
    for (auto& s : shared) s.poisoned = false;
    dynamic_shared.poisoned = false;
    dynamic_shared.poison();

    for (Context* to = &next(); to != &scheduler; to = &next()) switch_context(scheduler, *to);
    if (error.empty() && done < (int)n) {
        int stuck = 0;
        while (threads[stuck].state == Thread::Done) stuck++;
        const Thread& t = threads[stuck];
        error = where(stuck);
        if (t.state == Thread::AtMbarrier) error += " waits forever: " + describe_mbarrier(t.mbarrier);
        else
            error += text(" waits forever: %u of %u threads never reach its %s", done, n,
                          t.state == Thread::AtBlock       ? "__syncthreads()"
                              : t.state == Thread::AtNamed ? "named barrier"
                                                           : "warp collective");
    }

    if (error.empty() && !(arriving.empty() && late.empty() && bulk.empty()))
        error = text("kernel %s: a block ends while copies are on their way", kernel);
    for (auto& [id, arrived] : named)
        if (error.empty() && !arrived.empty())
            error = text("kernel %s: a block ends with %zu arrivals at named barrier %d, which are too few",
                         kernel, arrived.size(), id);
    if (!error.empty()) {  // parked fibers are in the middle of a kernel: discard them
        idle.clear();
        fibers.clear();
    }
}

// every lane of `mask` brings its Args; the last to arrive runs `all` on them, then all lanes continue
template <class Args>
void warp_collective(unsigned mask, Args& mine, Site site, void (*all)(Args* lanes[32], unsigned mask)) {
    Worker& w = *worker;
    int t = w.current, lane = t % 32, first = t - lane;
    if (!(mask >> lane & 1)) {
        w.error = w.where(t) + text(": lane %d is not in its own mask %08x", lane, mask);
        w.stop();
    }

    Warp& warp = w.warps[t / 32];
    auto is_here = [&](const Thread& other) {
        return other.site.line() == site.line() && other.site.column() == site.column();
    };

    if (!warp.arrived) {
        warp.first = t;
        warp.is_mixed = false;
    } else if (!is_here(w.threads[warp.first]) || w.threads[warp.first].mask != mask) {
        warp.is_mixed = true;
    }

    for (unsigned others = warp.is_mixed ? warp.arrived & mask : 0; others; others &= others - 1) {
        const Thread& other = w.threads[first + __builtin_ctz(others)];
        if (is_here(other) || !(other.mask >> lane & 1)) continue;  // or it does not wait for this lane
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

}  // namespace emulated
