// numbers.h   the number types that the program computes in, chosen by the Makefile; and random numbers
//   floatX  parameters and activations: bf16, fp32 or fp64
//   real    sums, parameter gradients, master weights and moments: fp32, or fp64 in an fp64 build
//           (adamw.cuh stores some of them in fewer bits)
#pragma once
#include <stdint.h>
#include <string.h>
#include <cmath>
#include <string_view>
#if defined(DEVICE_CUDA)
#include <cuda_bf16.h>
#endif

#if defined(DEVICE_CUDA)
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

#if defined(DEVICE_CUDA)
using bf16 = __nv_bfloat16;
#else
struct bf16 {  // the upper half of a float, rounded to nearest even
    uint16_t bits;
    bf16() = default;
    bf16(const bf16&) = default;
    bf16& operator=(const bf16& x) {  // not defaulted: a memory copy keeps loops from being vectorised
        bits = x.bits;
        return *this;
    }
    explicit bf16(float f) {
        uint32_t u;
        memcpy(&u, &f, 4);
        bits = f != f ? (u >> 16) | 64 : (u + 0x7FFF + (u >> 16 & 1)) >> 16;
    }
    operator float() const {
        uint32_t u = (uint32_t)bits << 16;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
};
#endif

#if defined(PRECISION_BF16)
using floatX = bf16;
using real = float;
#define PRECISION_NAME "bf16"
#elif defined(PRECISION_FP64)
using floatX = double;
using real = double;
#define PRECISION_NAME "fp64"
#else
using floatX = float;
using real = float;
#define PRECISION_NAME "fp32"
#endif

// bytes per floatX and per real
struct Precision {
    const char* name = PRECISION_NAME;
    size_t x = sizeof(floatX), real = sizeof(::real);
    bool master() const { return x != real; }  // weights have master copies besides the parameters
};

// the same bits as another type
template <class To, class From>
HOST_DEVICE inline To bits_as(From x) {
    static_assert(sizeof(To) == sizeof x);
    To to;
    memcpy((void*)&to, &x, sizeof x);
    return to;
}

constexpr bool master_is_parameter = sizeof(floatX) == sizeof(real);  // then there are no master copies

// exp in plain arithmetic, so that the compiler can vectorise a loop over it
//   x = n ln 2 + r with |r| <= ln 2 / 2;  exp(x) = 2^n exp(r), exp(r) by its series to r^6, whose remainder
//   is below r^7/7! = 1.2e-7: within 2 units in the last place of fp32. Clamped to [-87, 88].
//   In fp64 it is std::exp.
inline float vector_exp(float x) {
    x = x < -87 ? -87 : x > 88 ? 88 : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounded to the nearest integer
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;    // ln 2 in two parts, the first exact in 16 bits
    float p = 1 + r * (1 + r * (1.0f / 2 + r * (1.0f / 6 +
                                                r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    int bits = ((int)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

inline double vector_exp(double x) { return std::exp(x); }

// ---- random numbers --------------------------------------------------------------------------------------

// Counter-based (Philox4x32-10; Salmon et al., SC'11): a value is a function of (seed, purpose, index) alone,
// never of the rank or of earlier draws. Every layout starts from the same weights, and a resumed run draws
// what the uninterrupted one would have. (AdamW's rounding bits follow from values: rounding_bits, adamw.cuh)
struct Philox { uint32_t x[4]; };

inline Philox philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t x0 = (uint32_t)counter_low, x1 = (uint32_t)(counter_low >> 32);
    uint32_t x2 = (uint32_t)counter_high, x3 = (uint32_t)(counter_high >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x0, b = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(b >> 32) ^ x1 ^ k0, y2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)b;
        x3 = (uint32_t)a;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{x0, x1, x2, x3}};
}

// a number's purpose as a key: FNV-1a of a name ("h.3.attn.c_attn.weight", "sample", …)
constexpr uint64_t purpose(std::string_view name) {
    uint64_t h = 0xCBF29CE484222325ull;
    for (char c : name) h = (h ^ (unsigned char)c) * 0x100000001B3ull;
    return h;
}
