// adamw_state.cuh   a rank's optimizer state from step to step: master weights and moments
//   A master weight w is a real. With bf16 parameters it is stored in two halves: the parameter is its upper
//   half, rounded, and `low_bits` holds its lower 16 bits; otherwise the parameter itself is w. With
//   --master-weights no there is no `low_bits`: w is the parameter, rounded stochastically.
//   Moments are real or, with --moments bf16, bf16 rounded stochastically: to the neighbour above or below,
//   with probabilities that keep the mean exact. Rounded to nearest, a value that changes by less than half a
//   unit in its last place per step would never move, as v would with beta2 = 0.999.
//   parameters (n) floatX   low_bits (n) 16 bits   m, v (n) real or bf16
//   kept:  everything
//   communicates: nothing    cost in bytes: the parameter, in bf16 2 more for low_bits, and two moments
#pragma once
#include "base/device.h"

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
HOST_DEVICE inline uint32_t rounding_bits(uint32_t step, real w, real g) {
    uint32_t h = mix_bits(mix_bits(step) ^ bits_as<uint32_t>((float)w));
    return mix_bits(h ^ bits_as<uint32_t>((float)g));
}

// chance: 16 random bits; a real is stored as it is
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

    // stores w after an update; chance: the update's rounding_bits()
    HOST_DEVICE void update_master(long i, real w, uint32_t chance) const {
        if constexpr (master_is_parameter) parameters[i] = floatX(w);
        else set_master(i, keep(w, chance));
    }

    // w after an update, as it is stored; chance: the update's rounding_bits()
    HOST_DEVICE static MasterHalves keep(real w, uint32_t chance) {
        if (!rounds_parameters) return split_master(w);
        MasterHalves out = {};
        round_stochastically(out.parameter, w, mix_bits(chance));
        return out;
    }
};
