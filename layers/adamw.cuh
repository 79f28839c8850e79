// adamw.cuh   Adam with decoupled weight decay (Loshchilov & Hutter, 2019), and gradient clipping by norm
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2      g: the gradient, clipped
//   w = w - rate * (mhat / (sqrt(vhat) + epsilon) + decay * w)      mhat = m / (1 - beta1^update), vhat alike
//   g = gradient * min(1, clip / (norm + 1e-6)), norm = L2 norm of all gradients; not scaled if clip is 0. If
//   norm or loss is not finite, or exceeds its limit, the update is skipped, and not counted in `update`.
//   The device decides; the host learns of it when the step has ended.
//   parameters (n) floatX   m, v (n) real or bf16   gradients (n) real
//   flags (n / 128): one byte for every 128 values; n and all tensors' offsets are multiples of 128
//   Their storage between steps:
//   A master weight w is a real. With bf16 parameters it is stored in two halves: the parameter is its upper
//   half, rounded, and `low_bits` (n) holds its lower 16 bits; otherwise the parameter itself is w. With
//   --master-weights no there is no `low_bits`: w is the parameter, rounded stochastically.
//   Moments are real or, with --moments bf16, bf16 rounded stochastically: to the neighbour above or below,
//   with probabilities that keep the mean exact. Rounded to nearest, a value that changes by less than half a
//   unit in its last place per step would never move, as v would with beta2 = 0.999.
//   check: checksums of w, m and v as read and as written; a skipped update reads them too, and leaves them.
//   What one step has written the next must read, so a bit that flips in between changes a sum (each value's
//   bits times an odd number, modulo 2^32; their sum in 64 bits). This takes no extra memory traffic.
//   communicates: nothing    cost: bytes a parameter: 28, with bf16 moments 20, and without master
//                            weights as well 16; the norm 4 more: memory bound
#pragma once
#include <algorithm>
#include "base/operation.h"

// ---- the state, from step to step ------------------------------------------------------------------------

struct MasterHalves { floatX parameter; uint16_t low_bits; };

// The parameter is w rounded to nearest, ties away from 0: the upper half, plus 1 if the lower half begins
// with a 1. So join_master() recovers w exactly, to the last bit.
HOST_DEVICE inline MasterHalves split_master(real w) {
    if constexpr (master_is_parameter) return {floatX(w), 0};
    else {
        uint32_t bits = bits_as<uint32_t>(w);
        if (w != w) bits = (bits & 0xFFFF0000) | 0x400000;  // NaN stays NaN
        return {bits_as<floatX>((uint16_t)((bits + 0x8000) >> 16)), (uint16_t)bits};
    }
}

HOST_DEVICE inline real join_master(floatX parameter, uint16_t low_bits) {
    if constexpr (master_is_parameter) return real(parameter);
    else {
        uint16_t upper = (uint16_t)(bits_as<uint16_t>(parameter) - (low_bits >> 15));
        return bits_as<real>((uint32_t)upper << 16 | low_bits);
    }
}

// each bit of h flips half of the result's bits on average (MurmurHash3's finalizer)
HOST_DEVICE inline uint32_t mix_bits(uint32_t h) {
    h = (h ^ h >> 16) * 0x85EBCA6B;
    h = (h ^ h >> 13) * 0xC2B2AE35;
    return h ^ h >> 16;
}

// 32 pseudo-random bits, derived from the update's inputs: copies of a value on several ranks are rounded
// alike, and a resumed run rounds as the uninterrupted one would have. In another layout the last bits of g
// differ, so the random bits differ too; except in fp64, where w and g are rounded to fp32 here
HOST_DEVICE inline uint32_t rounding_bits(uint32_t update_number, real w, real g) {
    uint32_t h = mix_bits(mix_bits(update_number) ^ bits_as<uint32_t>((float)w));
    return mix_bits(h ^ bits_as<uint32_t>((float)g));
}

// chance: random bits, of which the lower 16 count; a real is stored as it is
HOST_DEVICE inline void round_stochastically(real& to, real x, uint32_t) { to = x; }
HOST_DEVICE inline void round_stochastically(bf16& to, real x, uint32_t chance) {
    uint32_t bits = bits_as<uint32_t>((float)x);
    bits = x == x ? bits + (chance & 0xFFFF) : bits | 0x400000;  // NaN stays NaN
    to = bits_as<bf16>((uint16_t)(bits >> 16));
}

// The state of the values that a rank owns. Moment: real or bf16; HAS_LOW: master weights are in two halves
template <class Moment, bool HAS_LOW>
struct AdamWState {
    floatX* parameters;
    uint16_t* low_bits;  // nullptr if !HAS_LOW
    Moment *m, *v;

    static constexpr bool has_low = HAS_LOW;
    static constexpr bool rounds_parameters = !master_is_parameter && !HAS_LOW;
    // whether an update needs rounding_bits()
    static constexpr bool rounds = sizeof(Moment) < sizeof(real) || rounds_parameters;

    HOST_DEVICE real master(long i) const {
        return join_master(parameters[i], HAS_LOW ? low_bits[i] : uint16_t(0));
    }

    HOST_DEVICE void set_master(long i, const MasterHalves& halves) const {
        parameters[i] = halves.parameter;
        if (HAS_LOW) low_bits[i] = halves.low_bits;
    }

    // w after an update, as it is stored; chance: the update's rounding_bits()
    HOST_DEVICE static MasterHalves keep(real w, uint32_t chance) {
        if (!rounds_parameters) return split_master(w);
        MasterHalves out = {};
        round_stochastically(out.parameter, w, mix_bits(chance));
        return out;
    }
};

// ---- a step ----------------------------------------------------------------------------------------------

constexpr int flag_span = 128;
constexpr uint8_t flag_decay = 1, flag_in_norm = 2;  // weight decay applies; the gradient counts in the norm

struct HyperParameters {
    real rate, beta1, beta2, epsilon, decay;
    real bias_correction1, bias_correction2;  // 1 - beta1^update_number, 1 - beta2^update_number
    uint32_t update_number = 1;
    double norm_limit = INFINITY, loss_limit = INFINITY;  // of the norm, and of the sum of the step's losses
    double clip = 0;                                      // largest gradient norm; 0: no clipping

    HOST_DEVICE real update(real w, real& m, real& v, real g, bool decaying) const {
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        real shrink = decaying ? decay : 0;
        return w - rate * (m / bias_correction1 / (std::sqrt(v / bias_correction2) + epsilon) + shrink * w);
    }
};

// whether and how a step updates the parameters: made on the device, read by adamw, then by the host
struct UpdateDecision {
    double norm;      // before clipping
    real clip_coefficient;  // multiplies the gradients
    int will_update;  // 0: the update is skipped

    HOST_DEVICE void decide(const double* sums, int count, const HyperParameters& hyper) {
        double sum = 0;
        for (int i = 0; i < count; i++) sum += sums[i];
        norm = sqrt(sum);
        double wanted = hyper.clip > 0 ? hyper.clip / (norm + 1e-6) : 1;
        clip_coefficient = (real)(wanted < 1 ? wanted : 1);
        double loss = sums[count];  // summed over the step's tokens
        // comparisons with NaN are false
        will_update = norm < INFINITY && norm <= hyper.norm_limit && loss < INFINITY &&
            loss <= hyper.loss_limit;
    }
};

// checksums of a rank's optimizer state, accumulated over the launches of one update
struct StateCheck {
    unsigned long long read, written;  // over the bits of w, m and v

    // what element i of a launch, with these values, adds to a sum. The multipliers are odd, so that flipping
    // any one bit changes it
    template <class Moment>
    HOST_DEVICE static uint32_t term(long i, real w, Moment m, Moment v) {
        uint32_t odd = (uint32_t)i * 2 + 1;
        return product(odd, w) + product(odd ^ 0x9E3779B8, m) + product(odd ^ 0xC2B2AE3C, v);
    }

    // the bits of x times an odd number, modulo 2^32
    template <class T>
    HOST_DEVICE static uint32_t product(uint32_t odd, T x) {
        if constexpr (sizeof x == 8) {
            uint64_t bits = bits_as<uint64_t>(x);
            return odd * (uint32_t)bits + (odd ^ 0x85EBCA6A) * (uint32_t)(bits >> 32);
        } else if constexpr (sizeof x == 4) {
            return odd * bits_as<uint32_t>(x);
        } else {
            uint32_t bits = 0;  // 32 bits, not 16: with 16 nvcc generates a slower loop on sm_80
            memcpy(&bits, &x, sizeof x);
            return odd * bits;
        }
    }
};

// n values that a rank owns, from `at` in the flat buffers; their sum of squares goes to sums[global_id]
struct Slice {
    long at, n, state_offset;  // state_offset: in low_bits, m, v and, in spans, flags
    int global_id, part_count;
};
constexpr int square_sum_parts = 256;  // at most; the parts depend on n alone, never on threads
inline int square_sum_part_count(long n) {
    return n < 4096L * square_sum_parts ? ceil_div(n, 4096) : square_sum_parts;
}

// ---- the operations --------------------------------------------------------------------------------------

template <class State>
struct AdamW {
    State state;
    const real* gradients;
    const uint8_t* flags;
    const HyperParameters* hyper;
    const UpdateDecision* decision;
    StateCheck* check;
    long n;

    static constexpr const char* name = "adamw";
    std::vector<TensorAccess> tensors() const {
        return {reads("gradients", gradients, n), updates("parameters", state.parameters, n),
                updates("low_bits", state.low_bits, n), updates("m", state.m, n), updates("v", state.v, n)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// sum += x; both (n) real
struct AddValues {
    real* sum;
    const real* x;
    long n;

    static constexpr const char* name = "add_values";
    std::vector<TensorAccess> tensors() const { return {reads("x", x, n), updates("sum", sum, n)}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// sums[slice.global_id] = sum of x^2 over a slice's values with flag_in_norm; parts: square_sum_parts a
// slice. For the plan alone: sums has sum_count values, x has `all`, of which the `count` slices cover n
struct SquareSums {
    double *sums, *parts;
    const real* x;
    const uint8_t* flags;
    const Slice* slices;
    int count;
    long sum_count = 0, all = 0, n = 0;

    static constexpr const char* name = "square_sums";
    std::vector<TensorAccess> tensors() const {
        return {reads("gradients", x, all), writes("squares", sums, sum_count)};
    }
    std::vector<Work> works() const { return {moves(0, (double)n)}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// sum of x (n)
struct SumValues {
    double* sum;
    const real* x;
    long n;

    static constexpr const char* name = "sum_values";
    std::vector<TensorAccess> tensors() const { return {reads("x", x, n), writes("sum", sum, 1)}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// sums (count + 1): sums of squares of the gradients, which make up the norm, then the sum of losses
struct DecideUpdate {
    UpdateDecision* decision;
    const double* sums;
    int count;
    const HyperParameters* hyper;

    static constexpr const char* name = "decide_update";
    std::vector<TensorAccess> tensors() const {
        return {reads("sums", sums, count + 1), written_values("decision", decision, 1)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
namespace ref {

// what a span of flag_span values adds to a checksum
template <class State>
uint64_t span_checksum(State state, long first) {
    uint32_t terms[flag_span];
    #pragma omp simd
    for (int j = 0; j < flag_span; j++) {
        long i = first + j;
        terms[j] = StateCheck::term(i, state.master(i), state.m[i], state.v[i]);
    }
    uint64_t sum = 0;
    for (uint32_t term : terms) sum += term;
    return sum;
}

// state and hyper are passed by value: stores cannot change them, so the compiler can vectorise the loop
template <class State>
void update_span(State state, const real* gradients, HyperParameters hyper, real clip_coefficient,
                 bool decaying, long first) {
    #pragma omp simd
    for (long i = first; i < first + flag_span; i++) {
        real w = state.master(i), m = real(state.m[i]), v = real(state.v[i]);
        real g = gradients[i] * clip_coefficient;
        uint32_t chance = State::rounds ? rounding_bits(hyper.update_number, w, g) : 0;
        state.set_master(i, State::keep(hyper.update(w, m, v, g, decaying), chance));
        round_stochastically(state.m[i], m, chance);
        round_stochastically(state.v[i], v, chance >> 16);
    }
}

}  // namespace ref

template <class State>
void AdamW<State>::ref(Stream) const {
    unsigned long long read = 0, written = 0;
    #pragma omp parallel for reduction(+ : read, written)
    for (long first = 0; first < n; first += flag_span) {
        bool decaying = flags[first / flag_span] & flag_decay;
        read += ref::span_checksum(state, first);
        if (decision->will_update)
            ref::update_span(state, gradients, *hyper, decision->clip_coefficient, decaying, first);
        written += ref::span_checksum(state, first);
    }
    check->read += read;
    check->written += written;
}

void AddValues::ref(Stream) const {
    #pragma omp parallel for simd
    for (long i = 0; i < n; i++) sum[i] += x[i];
}

void SquareSums::ref(Stream) const {
    for (int k = 0; k < count; k++) {
        const Slice& slice = slices[k];
        long part = (slice.n / flag_span + slice.part_count - 1) / slice.part_count * flag_span;
        #pragma omp parallel for
        for (int p = 0; p < slice.part_count; p++) {
            double sum = 0;
            long last = (p + 1) * part < slice.n ? (p + 1) * part : slice.n;
            for (long i = p * part; i < last; i += flag_span) {
                if (!(flags[(slice.state_offset + i) / flag_span] & flag_in_norm)) continue;
                const real* values = x + slice.at + i;
                #pragma omp simd reduction(+ : sum)
                for (int j = 0; j < flag_span; j++) sum += (double)values[j] * values[j];
            }
            parts[p] = sum;
        }

        double sum = 0;
        for (int p = 0; p < slice.part_count; p++) sum += parts[p];
        sums[slice.global_id] = sum;
    }
}

void SumValues::ref(Stream) const {
    *sum = 0;
    for (long i = 0; i < n; i++) *sum += x[i];
}

void DecideUpdate::ref(Stream) const {
    decision->decide(sums, count, *hyper);
}
#endif

#if KERNELS_HERE
namespace gpu {

constexpr int real_each = Vec<real>::size;  // values per thread: 16 bytes of real

constexpr int adamw_block = 256;

// updates a thread's values, or leaves them; returns what they add to the checksums
template <class State>
__device__ inline StateCheck adamw_values(const State& state, const real* gradients, const uint8_t* flags,
                                          HyperParameters hyper, UpdateDecision decision, long i) {
    // no branch before the stores, so that all loads are in flight together
    auto parameters = load_values<real_each>(state.parameters + i);
    Values<uint16_t, real_each> low_bits = {};
    if (State::has_low) low_bits = load_values<real_each>(state.low_bits + i);
    auto ms = load_values<real_each>(state.m + i), vs = load_values<real_each>(state.v + i);
    Vec<real> gs = load16(gradients + i);
    bool decaying = flags[i / flag_span] & flag_decay;

    StateCheck sums = {};
    #pragma unroll
    for (int k = 0; k < real_each; k++) {
        real w = join_master(parameters.at[k], low_bits.at[k]), m = real(ms.at[k]), v = real(vs.at[k]);
        real g = gs.at[k] * decision.clip_coefficient;
        sums.read += StateCheck::term(i + k, w, ms.at[k], vs.at[k]);
        uint32_t chance = State::rounds ? rounding_bits(hyper.update_number, w, g) : 0;
        MasterHalves updated = state.keep(hyper.update(w, m, v, g, decaying), chance);
        parameters.at[k] = updated.parameter;
        low_bits.at[k] = updated.low_bits;
        round_stochastically(ms.at[k], m, chance);
        round_stochastically(vs.at[k], v, chance >> 16);
        w = join_master(updated.parameter, updated.low_bits);
        sums.written += StateCheck::term(i + k, w, ms.at[k], vs.at[k]);
    }

    if (decision.will_update) {
        store_values(state.parameters + i, parameters);
        if (State::has_low) store_values(state.low_bits + i, low_bits);
        store_values(state.m + i, ms);
        store_values(state.v + i, vs);
    }
    return {sums.read, decision.will_update ? sums.written : sums.read};
}

template <class State>
__global__ void adamw_kernel(State state, const real* gradients, const uint8_t* flags,
                             const HyperParameters* hyper, const UpdateDecision* decision,
                             StateCheck* check, long n) {
    long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * real_each;
    StateCheck sums = {};
    if (i < n) sums = adamw_values(state, gradients, flags, *hyper, *decision, i);
    // in integers, so that the order of the blocks does not matter
    SHARED(unsigned long long, read, adamw_block / 32);
    SHARED(unsigned long long, written, adamw_block / 32);
    sums = {sum_over_block(sums.read, read), sum_over_block(sums.written, written)};
    if (threadIdx.x > 0) return;
    atomicAdd(&check->read, sums.read);
    atomicAdd(&check->written, sums.written);
}

__global__ void add_values_kernel(real* sum, const real* x, long n) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[i] += x[i];
}

constexpr int square_sum_block = 256;

// one block per (part, slice)
__global__ void square_sums_kernel(double* parts, const real* x, const uint8_t* flags, const Slice* slices) {
    Slice slice = slices[blockIdx.y];
    if ((int)blockIdx.x >= slice.part_count) return;
    double sum = 0;
    #pragma unroll 4
    for (long i = ((long)blockIdx.x * blockDim.x + threadIdx.x) * real_each; i < slice.n;
         i += (long)slice.part_count * blockDim.x * real_each) {
        Vec<real> v = load16(x + slice.at + i);  // not behind a branch, as it would wait for the flag
        bool counts = flags[(slice.state_offset + i) / flag_span] & flag_in_norm;
        double with_these = sum;
        for (int k = 0; k < real_each; k++) with_these += (double)v.at[k] * v.at[k];
        if (counts) sum = with_these;
    }
    SHARED(double, lane, square_sum_block / 32);
    sum = sum_over_block(sum, lane);
    if (threadIdx.x == 0) parts[(long)blockIdx.y * square_sum_parts + blockIdx.x] = sum;
}

// one block per slice
__global__ void square_sums_add_kernel(double* sums, const double* parts, const Slice* slices) {
    static_assert(square_sum_parts <= square_sum_block);
    Slice slice = slices[blockIdx.x];
    bool mine = (int)threadIdx.x < slice.part_count;
    double sum = mine ? parts[(long)blockIdx.x * square_sum_parts + threadIdx.x] : 0;
    SHARED(double, lane, square_sum_block / 32);
    sum = sum_over_block(sum, lane);
    if (threadIdx.x == 0) sums[slice.global_id] = sum;
}

// a single block, so that the order is always the same; as large as a block can be
constexpr int sum_block = 1024;
__global__ void sum_values_kernel(double* out, const real* x, long n) {
    double sum = 0;
    #pragma unroll 16  // 16 loads in flight
    for (int k = 0; k < (int)((n - threadIdx.x + sum_block - 1) / sum_block); k++)
        sum += x[(long)k * sum_block + threadIdx.x];
    SHARED(double, lane, sum_block / 32);
    sum = sum_over_block(sum, lane);
    if (threadIdx.x == 0) *out = sum;
}

__global__ void decide_update_kernel(UpdateDecision* decision, const double* sums, int count,
                                     const HyperParameters* hyper) {
    decision->decide(sums, count, *hyper);
}

}  // namespace gpu

template <class State>
void AdamW<State>::gpu(Stream s) const {
    LAUNCH(gpu::adamw_kernel<State>, ceil_div(n, gpu::adamw_block * gpu::real_each), gpu::adamw_block, 0, s,
           state, gradients, flags, hyper, decision, check, n);
}

void AddValues::gpu(Stream s) const {
    LAUNCH(gpu::add_values_kernel, ceil_div(n, 256), 256, 0, s, sum, x, n);
}

void SquareSums::gpu(Stream s) const {
    LAUNCH(gpu::square_sums_kernel, dim3(square_sum_parts, count), gpu::square_sum_block, 0, s, parts, x,
           flags, slices);
    LAUNCH(gpu::square_sums_add_kernel, count, gpu::square_sum_block, 0, s, sums, parts, slices);
}

void SumValues::gpu(Stream s) const {
    LAUNCH(gpu::sum_values_kernel, 1, gpu::sum_block, 0, s, sum, x, n);
}

void DecideUpdate::gpu(Stream s) const {
    LAUNCH(gpu::decide_update_kernel, 1, 1, 0, s, decision, sums, count, hyper);
}
#endif
