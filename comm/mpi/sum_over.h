// sum_over.h   sums of numbers on the host, over the ranks of a group
#pragma once
#include <bit>
#include "../comm.h"

namespace comm {

// sums over ranks of numbers on the host, always added in rank order
inline std::vector<double> sum_over(const Group& g, const std::vector<double>& x, const char* label) {
    if (g.size == 1) return x;
    std::vector<int64_t> bits;
    for (double each : x) bits.push_back(std::bit_cast<int64_t>(each));
    std::vector<int64_t> all = gather_numbers(g, bits, label);
    std::vector<double> sum(x.size(), 0);
    for (size_t i = 0; i < all.size(); i++) sum[i % x.size()] += std::bit_cast<double>(all[i]);
    return sum;
}

}  // namespace comm
