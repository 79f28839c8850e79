// packed_attention_hopper.cuh   packed_attention.cuh on sm_90a, with TMA loads and wgmma
//   Like flash_attention_hopper.cuh's forward, but over the keys that a segment sees: first its own, then the
//   prefix that it shares with other segments. Both ranges of the cache are cut into tiles of 128 keys. A
//   block has one Tile's queries (64 at most) and one head; its first warpgroup is the producer, its second
//   the consumer.
//     keys beyond the last    belong to other segments, or to none: their scores are masked, and their values
//                             set to 0, because even a weight of 0 times NaN is NaN
//   communicates: nothing    cost: that of packed_attention.cuh
//   gpu: bf16, HS 64 or 128; shared memory 1 + HS * 1.125 KB
#pragma once
#include "flash_dispatch.cuh"
#include "packed_attention.cuh"

#if KERNELS_HERE
namespace gpu {

template <int HS>
using PackedTiles = HopperTiles<HS, segment_rows>;

// tile i of the keys that a segment's rows see: rows [first, first + n) of the cache; row r of the queries
// sees the tile's keys up to `diagonal` + r
struct SeenKeys { int first, n, diagonal; };
__device__ inline int own_key_tiles(const Tile& t, int keys) {
    return (t.at + t.rows - t.own + keys - 1) / keys;
}
__device__ inline SeenKeys seen_keys(const Tile& t, int i, int keys) {
    int own = own_key_tiles(t, keys);
    if (i < own) {
        int first = t.own + i * keys, left = t.at + t.rows - first;
        return {first, left < keys ? left : keys, t.at - first};
    }
    int first = (i - own) * keys, left = t.shared - first;
    return {t.prefix + first, left < keys ? left : keys, keys};
}

template <int HS>
__global__ void __launch_bounds__(PackedTiles<HS>::threads, 1)
packed_attention_hopper_kernel(const __grid_constant__ TensorMap query_map,
                               const __grid_constant__ TensorMap key_map, bf16* o, const Tile* tiles, int NH,
                               float scale_log2) {
    if (!has_wgmma) return;  // also compiled for other GPUs, but never launched there
    using Tiles = PackedTiles<HS>;
    constexpr int keys = Tiles::keys, stages = Tiles::stages;
    DYNAMIC_SHARED(char, shared);
    SHARED(HopperBarriers, barriers, 1);
    HopperBarriers& at = barriers[0];
    char* q = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *k = q + Tiles::all_queries, *v = k + stages * Tiles::all_keys;

    Tile t = tiles[blockIdx.x];
    int h = blockIdx.y, count = own_key_tiles(t, keys) + (t.shared + keys - 1) / keys;
    init_barriers(at, Tiles::warps);

    // the first warpgroup loads; its first thread does
    if (threadIdx.x < 128) {
        fewer_registers<24>();
        if (threadIdx.x > 0) return;
        ask_for_tiles<HS, segment_rows>(q, query_map, &at.queries, 3 * h, t.at, 0);
        auto first_key = [&](int i) { return seen_keys(t, i, keys).first; };
        ask_for_keys<HS, Tiles>(at, k, key_map, h, 0, count, first_key);
        return;
    }

    more_registers<240>();
    int thread = (int)threadIdx.x - 128, own = thread / 32 * 16 + thread % 32 / 4, c = thread % 4 * 2;
    Attended<HS> attended;

    auto mask = [&](auto& s, int i) {  // masks the keys that a row does not see
        SeenKeys seen = seen_keys(t, i, keys);
        if (seen.n == keys && seen.diagonal >= keys - 1) return;
        #pragma unroll
        for (int j = 0; j < keys / 2; j++) {
            int key = j / 4 * 8 + c + j % 2, row = own + j / 2 % 2 * 8;
            if (key >= seen.n || key > seen.diagonal + row) s[j] = -INFINITY;
        }
    };

    auto clear_beyond = [&](int i) {  // sets the values beyond the last key to 0
        int n = seen_keys(t, i, keys).n;
        if (n == keys) return;
        for (int piece = thread; piece < (keys - n) * (HS / 8); piece += 128) {
            int row = n + piece / (HS / 8), place = piece % (HS / 8);
            char* to = v + i % stages * Tiles::all_keys + place / 8 * Tiles::key_tile + row * 128;
            store_for_async(to + place % 8 * 16, Vec<bf16>{});
        }
        fence_for_async();
        named_barrier<128>(1);
    };

    attend<HS, Tiles>(attended, at, shared_address(q), shared_address(k), count, scale_log2, mask,
                      clear_beyond);
    int row = thread / 32 * 16;
    write_rows(o + (long)t.row * NH * HS + h * HS, nullptr, attended, q, row, t.rows, (long)NH * HS);
}

template <int HS>
void packed_hopper(bf16* o, const bf16* qkv, const Tile* tiles, int count, int cache_rows, AttentionShape a,
                   Stream s) {
    using Tiles = PackedTiles<HS>;
    AttentionShape cache = {1, cache_rows, a.NH, HS};
    TensorMap queries = tiles_of<HS>(qkv, 3, segment_rows, cache);
    TensorMap keys = tiles_of<HS>(qkv, 3, Tiles::keys, cache);
    allow_shared(packed_attention_hopper_kernel<HS>, Tiles::bytes);
    LAUNCH(packed_attention_hopper_kernel<HS>, dim3(count, a.NH), Tiles::threads, Tiles::bytes, s, queries,
           keys, o, tiles, a.NH, (float)a.scale() * log2_e);
}

}  // namespace gpu

void PackedAttention::compute_with(bool hopper, Stream s) const {
    // a template, so that bf16's kernel is not compiled for another floatX
    auto compute = [&](auto* out, auto* in) {
        if constexpr (sizeof(*out) == 2) {
            auto by = a.HS == 64 ? gpu::packed_hopper<64> : gpu::packed_hopper<128>;
            if (hopper) return by(out, in, tiles, count, cache_rows, a, s);
        }
        gpu::packed_attention_any(out, in, tiles, count, a, s);
    };
    compute(o, qkv);
}

// the kernel is chosen once for all batches with these heads, in tune_packed()
void PackedAttention::gpu(Stream s) const {
    bool can = sizeof(floatX) == 2;
    compute_with(can && gpu::takes_hopper(*this, "of packed batches", {1, 0, a.NH, a.HS}, s), s);
}
#endif
