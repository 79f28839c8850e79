// turns.h   blocks that wait for one another's turn, and whether such a wait has expired
//   wait_until and publish: a counter in global memory that keeps blocks in order. All threads of a block
//   write, then a barrier, then one thread publishes (its release covers what the barrier ordered before it).
//   In the next block one thread waits, then a barrier, then all threads read the results with load_from_l2.
//   On sm_90a one thread waits, adds by a bulk copy, waits for that to end, and publishes; in the block whose
//   turn is the last it brings the sum to shared memory by another.
//   On a GPU a wait that does not end gives up after ten seconds, and later waits give up early: the kernel
//   ends with invalid results, so a step ends with refuse_expired_waits(), after the update and before
//   anything is reported or saved. (A trap instead made registers spill.) In emulation a wait that cannot end
//   is an error as soon as no other thread can run.
#pragma once
#include "../base/device.h"

// whether a wait has expired since the last call; waits for the stream
#if HAS_KERNELS
bool take_expired_wait(Stream s);
#else
inline bool take_expired_wait(Stream) { return false; }
#endif

// the results of `what` are refused if a wait of the kernels that made them has expired; waits for the stream
inline void refuse_expired_waits(const char* what, Stream s) {
    if (take_expired_wait(s))
        fail("%s: a wait in flash attention's kernels has expired: results are wrong; resume from the last "
             "checkpoint with TRAIN_GPT_SM80_ATTENTION=1 in the environment of all ranks (H100, H200) or "
             "with --attention materialised, and report this", what);
}

#if KERNELS_HERE
#if defined(__CUDACC__)
static __device__ int wait_expired;
constexpr int64_t longest_wait = 10'000'000'000;  // nanoseconds

// called by a thread after each poll; reads the clock at every 4096th; began: 0 at first
__device__ inline bool gives_up(uint32_t polls, uint64_t& began) {
    if (polls % 4096) return false;
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));  // nanoseconds
    if (began == 0) began = now;
    // signed: a clock that is set back must not look like the end
    if (!*(volatile int*)&wait_expired && (int64_t)(now - began) < longest_wait) return false;
    wait_expired = 1;
    return true;
}

bool take_expired_wait(Stream s) {
    int then = 0, none = 0;
    synchronize(s);
    check_cuda(cudaMemcpyFromSymbol(&then, wait_expired, sizeof then), "asking for waits that expired");
    if (then) check_cuda(cudaMemcpyToSymbol(wait_expired, &none, sizeof none), "forgetting them");
    return then;
}

__device__ inline void wait_until(const int* turn, int value) {
    int now;
    uint64_t began = 0;
    for (uint32_t polls = 1;; polls++) {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
        if (now == value || gives_up(polls, began)) return;
    }
}

__device__ inline void publish(int* turn, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(turn), "r"(value) : "memory");
}

// bypasses L1, which may hold values from before other blocks wrote
__device__ inline float2 load_from_l2(const float2* x) {
    float2 v;  // __ldcg, but not to be moved over a barrier
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(x) : "memory");
    return v;
}
#else
// for checks of the callers: EMULATED_EXPIRED_WAIT=N makes the N-th call return true
bool take_expired_wait(Stream s) {
    static const char* given = getenv("EMULATED_EXPIRED_WAIT");
    static int asked = 0;
    synchronize(s);
    return given && ++asked == atoi(given);
}

inline void wait_until(const int* turn, int value) {
    emulated::worker->look_again = [](long published) { emulated::block_waits.look_again(published); };
    for (;;) {
        long published = emulated::block_waits.published_so_far();
        if (__atomic_load_n(turn, __ATOMIC_ACQUIRE) == value) break;
        emulated::worker->wait_for_turn(published);
    }
    emulated::block_waits.stop_waiting();
    emulated::Thread& t = emulated::worker->threads[emulated::worker->current];
    t.turn = turn;
    t.turn_value = value;
    t.turn_barriers = t.barriers;
    t.bulk_is_done = false;
    t.turn_known = emulated::worker->latest_turn[emulated::worker->current / 128] =
        ++emulated::worker->turns_known;
}

inline void publish(int* turn, int value) {
    const emulated::Thread& t = emulated::worker->threads[emulated::worker->current];
    // missing barriers may not show in the results, so they are checked here; a watched build checks accesses
    bool waited = t.turn == turn && t.turn_value == value - 1;
    if (!emulated::watch::on && !(waited && (t.bulk_is_done || t.barriers >= t.turn_barriers + 2)))
        fail("publish: requires a wait_until by the same thread, then a barrier, and one before publish, or "
             "the end of its bulk copies");
    __atomic_store_n(turn, value, __ATOMIC_RELEASE);
    emulated::block_waits.publish();
}

inline float2 load_from_l2(const float2* x) {
    long known = emulated::worker->threads[emulated::worker->current].turn_known;
    if (!emulated::watch::on &&
        (!known || known < emulated::worker->latest_turn[emulated::worker->current / 128]))
        fail("load_from_l2: requires a wait_until in this warpgroup or block, and a barrier behind it");
    return load_whole(x);
}
#endif
#endif
