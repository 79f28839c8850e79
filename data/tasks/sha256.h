// sha256.h   SHA-256 (FIPS 180-4) of a stream of bytes, as 64 hexadecimal digits
#pragma once
#include <stdint.h>
#include <string.h>
#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include "../../layers/base/check.h"

struct Sha256 {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char block[64];
    uint64_t bytes = 0;

    void add(std::string_view text) {
        for (size_t taken = 0; taken < text.size();) {
            size_t had = bytes % 64, n = std::min(text.size() - taken, 64 - had);
            memcpy(block + had, text.data() + taken, n);
            taken += n;
            bytes += n;
            if (bytes % 64 == 0) mix();
        }
    }

    std::string digits() {  // ends the stream
        uint64_t bits = bytes * 8;
        std::string end(1, (char)0x80);
        end.resize(1 + (119 - bytes % 64) % 64, 0);
        for (int i = 56; i >= 0; i -= 8) end += (char)(bits >> i);
        add(end);
        std::string out;
        for (uint32_t word : h) out += text("%08x", word);
        return out;
    }

private:
    void mix() {
        static constexpr uint32_t k[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        uint32_t w[64], v[8];

        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)block[4 * i] << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 |
                   block[4 * i + 3];

        auto turn = [](uint32_t x, int n) { return std::rotr(x, n); };
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
                   (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
        }

        std::copy(h, h + 8, v);
        for (int i = 0; i < 64; i++) {
            uint32_t choose = (v[4] & v[5]) ^ (~v[4] & v[6]),
                     most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
            uint32_t a = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) + choose + k[i] + w[i];
            uint32_t b = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + most;
            std::copy_backward(v, v + 7, v + 8);
            v[4] += a;
            v[0] = a + b;
        }

        for (int i = 0; i < 8; i++) h[i] += v[i];
    }
};
