// test_emulated.h   checks of the emulated device: threads, barriers, streams, and the errors that it finds
#pragma once
#include "../base/operation.h"
#include "../base/testing.h"
#include "../fast/graph.h"
#include "../fast/mma.h"

#if defined(DEVICE_EMULATED)
__global__ void missing_barrier_kernel(int* out) {
    if (threadIdx.x != 5) __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void missing_lane_kernel(int* out) {
    if (threadIdx.x == 3) return;
    out[threadIdx.x] = __shfl_xor_sync(all_lanes, 1, 1);
}

__global__ void foreign_mask_kernel(int* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 0); }
// half of the lanes are in one shuffle, half in another
__global__ void two_calls_kernel(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(all_lanes, 1, 1);
    else out[threadIdx.x] = __shfl_xor_sync(all_lanes, 2, 1);
}

__global__ void large_shared_kernel(int* out) {
    SHARED(int, x, 13 << 10);
    out[threadIdx.x] = x[threadIdx.x];
}

__global__ void poison_kernel(float* out) {
    SHARED(float, x, 4);
    out[threadIdx.x] = x[threadIdx.x];
}

__global__ void order_kernel(int* out, int* next) { out[atomicAdd(next, 1)] = threadIdx.x; }
__global__ void stamp_kernel(int* out) { *out = 7; }
__global__ void misaligned_kernel(int* out) { store_values(out + 1, load_values<2>(out)); }
// a neighbour's value through shared memory: right in any order of threads, but only with the barrier
__global__ void neighbour_kernel(int* out, bool barrier) {
    SHARED(int, x, 64);
    x[threadIdx.x] = threadIdx.x;
    if (barrier) __syncthreads();
    out[threadIdx.x] = x[(threadIdx.x + 1) % 64];
}

__global__ void warp_kernel(int* out) {
    int lane = threadIdx.x % 32;
    unsigned odd = __ballot_sync(all_lanes, lane & 1);
    int half = lane < 16 ? __shfl_xor_sync(0x0000ffffu, lane, 3) : __shfl_sync(0xffff0000u, lane, 2, 16);
    __syncwarp();
    out[threadIdx.x] = odd == 0xaaaaaaaau && half == (lane < 16 ? lane ^ 3 : 18);
}

// blocks take their turns, in an order that they draw; one of them never publishes
__global__ void turns_kernel(int* drawn, int* turn, int forgetful) {
    if (threadIdx.x == 0) drawn[1 + blockIdx.x] = atomicAdd(drawn, 1);
    __syncthreads();
    int mine = drawn[1 + blockIdx.x];
    if (threadIdx.x == 0) wait_until(turn, mine);
    __syncthreads();
    __syncthreads();
    if (threadIdx.x == 0 && mine != forgetful) publish(turn, mine + 1);
}

void test_emulated() {
    std::vector<int> out(1024, 0), next(1, 0);
    int *o = out.data(), *n = next.data();
    auto refused = [](const std::string& part, auto launch) {
        refuses(part, [&] {
            launch();
            synchronize(nullptr);
        });
    };

    int turn = 0;
    if (!emulated::watch::on) {
        LAUNCH(turns_kernel, 9, 32, 0, nullptr, o, &turn, -1);
        synchronize(nullptr);
        check(turn == 9, "nine blocks take their turns");
        out.assign(1024, 0);
        turn = 0;
        refused("waits for what no block will publish",
                [&] { LAUNCH(turns_kernel, 9, 32, 0, nullptr, o, &turn, 4); });
        out.assign(1024, 0);
    }

    refused("waits forever: 1 of 64 threads never reach its __syncthreads()",
            [&] { LAUNCH(missing_barrier_kernel, 1, 64, 0, nullptr, o); });
    refused("missing_lane_kernel, block (0,0,0), thread (0,0,0) waits",
            [&] { LAUNCH(missing_lane_kernel, 1, 32, 0, nullptr, o); });
    refused("not in its own mask", [&] { LAUNCH(foreign_mask_kernel, 1, 32, 0, nullptr, o); });
    refused("lanes of one warp are in different collectives",
            [&] { LAUNCH(two_calls_kernel, 1, 32, 0, nullptr, o); });
    refused("53248 bytes of shared memory and 0 dynamic ones",
            [&] { LAUNCH(large_shared_kernel, 1, 32, 0, nullptr, o); });
    refused("an access of 8 bytes at", [&] { LAUNCH(misaligned_kernel, 1, 1, 0, nullptr, o); });
    refused("launched with 50000 bytes of dynamic shared memory: 49152 are allowed",
            [&] { LAUNCH(stamp_kernel, 1, 1, 50000, nullptr, o); });
    allow_shared(stamp_kernel, 50000);
    LAUNCH(stamp_kernel, 1, 1, 50000, nullptr, o);
    synchronize(nullptr);
    refuses("a device has", [&] { allow_shared(stamp_kernel, 228 << 10); });
    refused("a block has 1 to 1024 threads", [&] { LAUNCH(order_kernel, 1, 1025, 0, nullptr, o, n); });
    std::vector<float> poison(4, 0);

    float* p = poison.data();
    if (is_watched) {
        refused("nobody has written it", [&] { LAUNCH(poison_kernel, 1, 4, 0, nullptr, p); });
    } else {
        LAUNCH(poison_kernel, 1, 4, 0, nullptr, p);
        synchronize(nullptr);
        check(std::isnan(poison[0]) && std::isnan(poison[3]), "shared memory starts as NaN");
    }

    std::vector<int> first;
    int wrong = 0;
    for (unsigned seed = 1; seed <= 4; seed++) {
        emulated::seed = seed;
        next[0] = 0;
        LAUNCH(order_kernel, 1, 64, 0, nullptr, o, n);
        synchronize(nullptr);
        std::vector<int> order(out.begin(), out.begin() + 64);
        check(order != first, "another seed, another order of threads");
        first = order;
        std::sort(order.begin(), order.end());
        check(order[0] == 0 && order[63] == 63 && std::unique(order.begin(), order.end()) == order.end(),
              "each thread ran once");
        LAUNCH(neighbour_kernel, 1, 64, 0, nullptr, o, true);
        synchronize(nullptr);
        for (int i = 0; i < 64; i++) wrong += out[i] != (i + 1) % 64;
        LAUNCH(warp_kernel, 3, 96, 0, nullptr, o);
        synchronize(nullptr);
        for (int i = 0; i < 96; i++) wrong += out[i] != 1;
    }

    check(wrong == 0, text("barriers and warp votes: %d wrong values", wrong));
    if (is_watched) {
        refused("of shared memory at", [&] { LAUNCH(neighbour_kernel, 1, 64, 0, nullptr, o, false); });
    } else {
        LAUNCH(neighbour_kernel, 1, 64, 0, nullptr, o, false);
        synchronize(nullptr);
        int stale = 0;
        for (int i = 0; i < 64; i++) stale += out[i] == -1;
        check(stale > 0, "without its barrier a kernel reads poison");
    }

    // two streams: the second reads what the first writes, with an event between them and without
    int early[2] = {0, 0};
    for (bool with_event : {true, false}) {
        cudaStream_t a = make_stream(), b = make_stream(true);
        Event written, read;
        for (unsigned round = 0; round < 100; round++) {
            emulated::seed = round + 1;
            int *from = &out[2 * round], *to = from + 1;
            *from = -1;
            LAUNCH(stamp_kernel, 1, 1, 0, a, from);
            written.record(a);
            if (with_event) written.block(b);
            copy_on_device(to, from, sizeof(int), b);
            read.record(b);
            read.block(a);
            set_zero(from, sizeof(int), a);
            synchronize(a);
            synchronize(b);
            early[with_event] += *to < 0;
            check(*from == 0, "a stream keeps its order");
        }
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
    }

    check(early[true] == 0, "an event orders two streams");
    check(early[false] > 10, text("without it the second is too early: %d of 100 times", early[false]));
    emulated::seed = 1;

    // a step that waits for the device cannot be captured: it is done call by call
    Stream s = make_stream();
    CapturedStep step;

    int* value = &out[0];
    for (int i = 0; i < 3; i++) {
        set_zero(value, sizeof(int), s);
        step.enqueue(s, 1, [&] {
            LAUNCH(stamp_kernel, 1, 1, 0, s, value);
            synchronize(s);
        });
        synchronize(s);
        check(*value == 7, text("a step without capture: %d", *value));
    }

    // nor one that copies from pageable memory; and what a copy reads stays until its turn has come
    CapturedStep copying;
    for (int i = 0; i < 3; i++) {
        std::vector<int> pageable = {i, 40 + i};
        copying.enqueue(s, 1, [&] {
            copy_to_device(value, pageable.data(), 2 * sizeof(int), s);
        });
        synchronize(s);
        check(value[0] == i && value[1] == 40 + i, "a copy from pageable memory, without capture");
    }

    // nor one that takes memory
    CapturedStep taking;
    bool is_refused = false;
    for (int i = 0; i < 3; i++) {
        taking.enqueue(s, 1, [&] {
            void* p = nullptr;
            is_refused |= cudaMalloc(&p, 16) == cudaErrorStreamCaptureUnsupported;
            if (p) cudaFree(p);
            LAUNCH(stamp_kernel, 1, 1, 0, s, value);
        });
        synchronize(s);
    }
    check(is_refused, "memory that is taken during a capture");

    // nor one with a GEMM that the device fails in while it is captured
    CapturedStep multiplying;
    int steps = 0;
    multiplying.enqueue(s, 1, [&] {
        if (++steps == 1) gpu::check_cublas(CUBLAS_STATUS_ALLOC_FAILED, "a GEMM");
    });
    check(steps == 2, text("a step with a GEMM that fails in the capture: %d times", steps));

    int early_changes = 0;
    for (unsigned round = 1; round <= 40; round++) {
        emulated::seed = round;
        int pageable = 1;
        try {
            copy_to_device(value, &pageable, sizeof(int), s);
            pageable = 2;
            synchronize(s);
        } catch (const Defect& e) {
            early_changes += strstr(e.what(), "was written again or freed") != nullptr;
        }
    }

    emulated::seed = 1;
    check(early_changes > 5, text("memory that changes before its copy: seen %d times", early_changes));
    destroy_stream(s);
}
#endif
