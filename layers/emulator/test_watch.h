// test_watch.h   checks of watch.h: each kind of order, and the error where it is missing; SANITIZE=thread
#pragma once
#include "../fast/mma.h"
#include "../base/testing.h"

#if defined(WATCHED)
// a block's threads exchange values through shared memory, twice: both barriers are needed
__global__ void exchange_kernel(int* out, bool first, bool second) {
    SHARED(int, x, 64);
    for (int round = 0; round < 2; round++) {
        x[threadIdx.x] = threadIdx.x + round;
        if (first) __syncthreads();
        out[threadIdx.x] = x[(threadIdx.x + 32) % 64];
        if (second) __syncthreads();
    }
}

// lanes of a warp: a shuffle between them does not order one's write before the other's read
__global__ void lanes_kernel(int* out, bool sync) {
    SHARED(int, x, 32);
    x[threadIdx.x] = 1;
    int sum = __shfl_xor_sync(all_lanes, 1, 1);
    if (sync) __syncwarp();
    out[threadIdx.x] = x[31 - threadIdx.x] + sum;
}

// a copy that is waited for, and seen by the others behind a barrier
__global__ void copied_kernel(int* out, const int* from, bool wait, bool barrier) {
    SHARED(int, x, 4 * 32);
    copy_async<16>(x + 4 * threadIdx.x, from + 4 * threadIdx.x, true);
    copy_async_commit();
    if (wait) copy_async_wait<0>();
    if (barrier) __syncthreads();
    out[threadIdx.x] = x[4 * ((threadIdx.x + 1) % 32)];
}

// a tile that is loaded anew while others may still read it
__global__ void overwritten_kernel(int* out, const int* from, bool barrier) {
    SHARED(int, x, 4 * 32);
    x[4 * threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = x[4 * ((threadIdx.x + 1) % 32)];
    if (barrier) __syncthreads();
    copy_async<16>(x + 4 * threadIdx.x, from, true);
    copy_async_commit();
    copy_async_wait<0>();
}

// each block goes on from the sum of the one before
__global__ void chain_kernel(int* sums, int* turns, bool wait, bool before, bool after) {
    SHARED(int, number, 1);
    if (threadIdx.x == 0) number[0] = atomicAdd(turns, 1);
    __syncthreads();
    int mine = number[0];
    if (threadIdx.x == 0 && wait) wait_until(turns + 1, mine);
    if (after) __syncthreads();
    sums[threadIdx.x] += mine;
    if (before) __syncthreads();
    if (threadIdx.x == 0) publish(turns + 1, mine + 1);
}

// what a publisher writes after it has published is ordered before no other block
__global__ void late_kernel(int* sums, int* turns) {
    SHARED(int, number, 1);
    if (threadIdx.x == 0) number[0] = atomicAdd(turns, 1);
    __syncthreads();
    if (threadIdx.x == 0) wait_until(turns + 1, number[0]);
    __syncthreads();
    if (threadIdx.x == 0) publish(turns + 1, number[0] + 1);
    if (threadIdx.x == 0) sums[0] += 1;
}

// no atomicAdd is ordered before the read, whichever thread adds last
__global__ void one_reads_kernel(int* sum, int* out) {
    atomicAdd(sum, 1);
    if (threadIdx.x == 7) *out = *sum;
}

__global__ void unwritten_kernel(int* out) {
    SHARED(int, x, 33);
    x[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x + 1];
}

__global__ void add_kernel(int* sum) { atomicAdd(sum, 1); }
__global__ void add_and_read_kernel(int* sum, int* out) { out[threadIdx.x] = atomicAdd(sum, 1) + *sum; }
constexpr int all_write_line = __LINE__ + 1;
__global__ void all_write_kernel(int* out) { *out = 1; }

// the error that the work ends with, or ""
template <class Work>
std::string error_of(Work work) {
    try {
        work();
    } catch (const std::exception& e) {
        return e.what();
    }

    return "";
}

void test_watch() {
    int* memory = (int*)device_malloc(4096 * sizeof(int), "a test");
    int *out = memory, *from = memory + 1024, *turns = memory + 2048;
    auto succeeds = [&](const char* what, auto work) {
        set_zero(memory, 4096 * sizeof(int), nullptr);
        std::string error = error_of([&] {
            work();
            synchronize(nullptr);
        });
        check(error.empty(), text("%s: %s", what, error.c_str()));
    };

    auto races = [&](const std::string& part, auto work) {
        set_zero(memory, 4096 * sizeof(int), nullptr);
        synchronize(nullptr);
        refuses(part, [&] {
            work();
            synchronize(nullptr);
        });
    };

    for (emulated::seed = 1; emulated::seed <= 4; emulated::seed++) {
        succeeds("both barriers", [&] { LAUNCH(exchange_kernel, 1, 64, 0, nullptr, out, true, true); });
        races("of shared memory at test_watch.h",
              [&] { LAUNCH(exchange_kernel, 1, 64, 0, nullptr, out, true, false); });
        races("of shared memory at test_watch.h",
              [&] { LAUNCH(exchange_kernel, 1, 64, 0, nullptr, out, false, true); });
        succeeds("a warp's barrier", [&] { LAUNCH(lanes_kernel, 1, 32, 0, nullptr, out, true); });
        races("of shared memory at test_watch.h",
              [&] { LAUNCH(lanes_kernel, 1, 32, 0, nullptr, out, false); });
        succeeds("a copy, waited for",
                 [&] { LAUNCH(copied_kernel, 1, 32, 0, nullptr, out, from, true, true); });
        races("(a copy of thread",
              [&] { LAUNCH(copied_kernel, 1, 32, 0, nullptr, out, from, false, true); });
        races("of shared memory",
              [&] { LAUNCH(copied_kernel, 1, 32, 0, nullptr, out, from, true, false); });
        races("nobody has written it", [&] { LAUNCH(unwritten_kernel, 1, 32, 0, nullptr, out); });
        succeeds("a tile, loaded anew",
                 [&] { LAUNCH(overwritten_kernel, 1, 32, 0, nullptr, out, from, true); });
        races("of shared memory",
              [&] { LAUNCH(overwritten_kernel, 1, 32, 0, nullptr, out, from, false); });
        succeeds("blocks in turn",
                 [&] { LAUNCH(chain_kernel, 4, 32, 0, nullptr, out, turns, true, true, true); });
        races("(another block)",
              [&] { LAUNCH(chain_kernel, 4, 32, 0, nullptr, out, turns, false, true, true); });
        races("races", [&] { LAUNCH(chain_kernel, 4, 32, 0, nullptr, out, turns, true, false, true); });
        races("races", [&] { LAUNCH(chain_kernel, 4, 32, 0, nullptr, out, turns, true, true, false); });
        races("(another block)", [&] { LAUNCH(late_kernel, 2, 32, 0, nullptr, out, turns); });
        races("of device memory", [&] { LAUNCH(one_reads_kernel, 1, 32, 0, nullptr, out, out + 64); });
        succeeds("atomics", [&] { LAUNCH(add_kernel, 4, 32, 0, nullptr, out); });
        races("of device memory",
              [&] { LAUNCH(add_and_read_kernel, 1, 32, 0, nullptr, out, out + 64); });
        std::string line = text("test_watch.h:%d", all_write_line);
        for (auto part : {"the write of device memory at " + line, "races with the write at " + line})
            races(part, [&] { LAUNCH(all_write_kernel, 1, 2, 0, nullptr, out); });
    }

    emulated::seed = 1;
    synchronize(nullptr);

    // two streams: with the event the second runs after the first; then without it
    cudaStream_t a = make_stream(), b = make_stream();
    for (bool with_event : {true, false}) {
        Event written;
        std::string error = error_of([&] {
            set_zero(out, 4, a);
            written.record(a);
            if (with_event) written.block(b);
            copy_on_device(from, out, 4, b);
            synchronize(a);
            synchronize(b);
        });
        check(error.empty() == with_event, "two streams: " + error);
        synchronize(a);
        synchronize(b);
    }

    // the host's pinned memory, which it must leave alone until the copy is done
    int* pinned = (int*)host_malloc(4, "a test");
    for (bool waits : {true, false}) {
        pinned[0] = 1;
        copy_to_device(out, pinned, 4, a);
        if (waits) synchronize(a);
        pinned[0] = 2;
        std::string error = error_of([&] { synchronize(a); });
        check(error.empty() == waits, "pinned memory: " + error);
    }

    host_free(pinned);
    destroy_stream(a);
    destroy_stream(b);
    device_free(memory);
}
#endif
