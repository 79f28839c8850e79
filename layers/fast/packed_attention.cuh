// packed_attention.cuh   causal attention, forward only, over a packed batch of variable-length segments,
//   each preceded by cached keys and values. A segment may be a prompt, the next token of a sequence, a
//   context, or one of several continuations of the same context, which is then computed only once:
//
//       cache   [ context c c c c ][ first f f ][ second s s s ]      f sees c c c c and the f up to itself,
//                 0             own                                   s sees c c c c and the s up to itself
//
//   A batch of N rows is cut into tiles: adjacent rows of one segment, at most segment_rows of them
//   qkv (rows of the cache, NH, 3, HS): q, k and v of a head are adjacent   o (N, NH, HS)
//   kept:  nothing (there is no backward)
//   communicates: nothing    cost: 4*HS flops for each query, head and key that it sees
//   gpu: in bf16, for flash attention's head sizes, attend_rows (flash_attention.cuh: tensor cores); else a
//   query at a time
#pragma once
#include <algorithm>
#include <vector>
#include "flash_dispatch.cuh"

constexpr int segment_rows = 64;

struct Tile {
    int row, rows;       // rows [row, row + rows) of the batch
    int at;              // the cache row of the first of them
    int own;             // row i of them sees rows [own, at + i] of the cache
    int prefix, shared;  // and, before those, rows [prefix, prefix + shared)
};

// ---- the operations --------------------------------------------------------------------------------------

struct PackedAttention {
    floatX* o;
    const floatX* qkv;
    const Tile* tiles;
    int count;
    AttentionShape a;

    static constexpr const char* name = "packed_attention";
    std::vector<TensorAccess> tensors() const { return {qkv_of(qkv, a), writes("o", o, a.rows(), a.ld_o())}; }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// cache[cache_slots[n]] = rows[n], of `width` values each
struct StoreCacheRows {
    floatX* cache;
    const floatX* rows;
    const int* cache_slots;
    int N, width;

    static constexpr const char* name = "store_cache_rows";
    std::vector<TensorAccess> tensors() const {
        return {reads("rows", rows, N, width), writes("cache", cache, N, width)};
    }
    void ref(Stream) const;
    void gpu(Stream) const;
};

// ---- ref -------------------------------------------------------------------------------------------------

#if REF_HERE
void PackedAttention::ref(Stream s) const {
    #pragma omp parallel for collapse(2) schedule(dynamic)
    for (int i = 0; i < count; i++)
        for (int h = 0; h < a.NH; h++) {
            const Tile& t = tiles[i];
            const floatX *q = qkv + 3L * h * a.HS, *k = q + a.HS, *v = k + a.HS;
            int near = t.at + t.rows - t.own, keys = t.shared + near;
            std::vector<real> p((size_t)t.rows * keys), sum((size_t)t.rows * a.HS);
            std::vector<floatX> rounded(p.size());

            auto scores = [&](int from, int n, int to) {
                ref::gemm<real>({.out = p.data() + to,
                                 .a = q + t.at * a.ld_qkv(),
                                 .b = k + from * a.ld_qkv(),
                                 .m = t.rows,
                                 .n = n,
                                 .k = a.HS,
                                 .transpose_b = true,
                                 .alpha = a.scale(),
                                 .lda = a.ld_qkv(),
                                 .ldb = a.ld_qkv(),
                                 .ldc = keys},
                                s);
            };

            if (t.shared) scores(t.prefix, t.shared, 0);
            scores(t.own, near, t.shared);
            for (int r = 0; r < t.rows; r++)
                ref::softmax_row(rounded.data() + (long)r * keys, p.data() + (long)r * keys,
                                 t.shared + t.at - t.own + r + 1, keys);

            auto values = [&](int from, int n, int at, real beta) {
                ref::gemm<real>({.out = sum.data(),
                                 .a = rounded.data() + at,
                                 .b = v + from * a.ld_qkv(),
                                 .m = t.rows,
                                 .n = a.HS,
                                 .k = n,
                                 .beta = beta,
                                 .lda = keys,
                                 .ldb = a.ld_qkv(),
                                 .ldc = a.HS},
                                s);
            };

            if (t.shared) values(t.prefix, t.shared, 0, 0);
            values(t.own, near, t.shared, t.shared ? 1 : 0);
            for (int r = 0; r < t.rows; r++)
                for (int c = 0; c < a.HS; c++)
                    o[(t.row + r) * a.ld_o() + (long)h * a.HS + c] = floatX(sum[(size_t)r * a.HS + c]);
        }
}

void StoreCacheRows::ref(Stream) const {
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        std::copy(rows + (long)n * width, rows + (long)(n + 1) * width, cache + (long)cache_slots[n] * width);
}
#endif

#if KERNELS_HERE
namespace gpu {

constexpr int segment_warps = 4;

// One block per tile and head; its keys come BN at a time: first the segment's own, then the prefix that it
// shares with others
template <int HS>
__global__ void __launch_bounds__(segment_warps * 32, forward_blocks(HS))
packed_tiles_kernel(bf16* o, const bf16* qkv, const Tile* tiles, int NH, float scale_log2) {
    constexpr int BN = 64;
    static_assert(segment_rows == 16 * segment_warps);
    DYNAMIC_SHARED(bf16, q);
    Tile t = tiles[blockIdx.x];
    int h = blockIdx.y, own = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
    int end = t.at + t.rows, own_tiles = (end - t.own + BN - 1) / BN;
    long row = 3L * NH * HS;

    // tile i has the rows [first, first + n) of the cache, of which row r sees those up to `diagonal` + r
    struct Keys { int first, n, diagonal; };
    auto keys_of = [&](int i) -> Keys {
        int first = t.own + i * BN, before = (i - own_tiles) * BN;
        if (i < own_tiles) return {first, end - first, t.at - first};
        return {t.prefix + before, t.shared - before, BN};
    };
    auto load_rows = [&](bf16* to, const bf16* part, int i) {
        Keys keys = keys_of(i);
        load_tile<BN, HS>(to, part, row, keys.first, keys.first + keys.n);
    };
    auto mask = [&](auto& s, int i) {
        Keys keys = keys_of(i);
        if (keys.n >= BN && keys.diagonal >= BN - 1) return;
        for (int n = 0; n < BN / 8; n++)
            for (int j = 0; j < 4; j++) {
                int key = n * 8 + c + j % 2, r = own + g + j / 2 * 8;
                if (key >= keys.n || key > keys.diagonal + r) s[0][n][j] = -INFINITY;
            }
    };

    AttendedRows<HS, 1> all;
    const bf16* of_head = qkv + 3L * h * HS;
    load_tile<segment_rows, HS>(q, of_head, row, t.at, end);
    attend_rows<BN>(all, q, q + segment_rows * (HS + 8), of_head, own_tiles + (t.shared + BN - 1) / BN,
                    scale_log2, load_rows, mask);
    write_attended(o + ((long)t.row * NH + h) * HS, nullptr, all, own, t.rows, (long)NH * HS);
}

// One block per tile and head; a warp takes a row at a time, 32 keys at once, one per lane. Online softmax:
// the sum so far is scaled down whenever a larger score appears.
__global__ void packed_attention_kernel(floatX* o, const floatX* qkv, const Tile* tiles, real scale,
                                        long width, int HS) {
    DYNAMIC_SHARED(real, shared);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, h = blockIdx.y;
    real *q = shared + (long)warp * 2 * HS, *sum = q + HS;  // (HS) each
    Tile t = tiles[blockIdx.x];
    const floatX *k = qkv + (3L * h + 1) * HS, *v = k + HS;

    for (int r = warp; r < t.rows; r += segment_warps) {
        const floatX* query = qkv + (t.at + r) * width + 3L * h * HS;
        for (int c = lane; c < HS; c += 32) {
            q[c] = real(query[c]) * scale;
            sum[c] = 0;
        }
        __syncwarp();

        // the scores of 32 keys at a time, and the softmax so far
        int seen = t.shared + t.at - t.own + r + 1;
        real largest = 0, all = 0;
        for (int base = 0; base < seen; base += 32) {
            int j = base + lane, n = seen - base < 32 ? seen - base : 32;
            long key = (long)(j < t.shared ? t.prefix + j : t.own + j - t.shared) * width;
            real score = 0;
            for (int c = 0; c < HS && lane < n; c += vec_size) {  // 16 bytes of the lane's key
                Vec<floatX> ks = load_row(k + key, c, HS);
                for (int j = 0; j < vec_size && c + j < HS; j++) score += q[c + j] * real(ks.at[j]);
            }

            real first = __shfl_sync(all_lanes, score, 0), most = warp_max(lane < n ? score : first);
            if (base == 0 || most > largest) {
                real keep = base == 0 ? 0 : exp(largest - most);
                for (int c = lane; c < HS; c += 32) sum[c] *= keep;
                all *= keep;
                largest = most;
            }

            real p = lane < n ? exp(score - largest) : 0;
            all += warp_sum(p);
            for (int i = 0; i < n; i++) {
                real weight = __shfl_sync(all_lanes, p, i);
                long value =
                    (long)(base + i < t.shared ? t.prefix + base + i : t.own + base + i - t.shared) * width;
                for (int c = lane; c < HS; c += 32) sum[c] += weight * real(v[value + c]);
            }
        }

        for (int c = lane; c < HS; c += 32)
            o[(long)(t.row + r) * (width / 3) + (long)h * HS + c] = floatX(sum[c] / all);
        __syncwarp();
    }
}

__global__ void store_cache_rows_kernel(floatX* cache, const floatX* rows, const int* cache_slots, long N,
                                        int width) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N * width) cache[cache_slots[i / width] * (long)width + i % width] = rows[i];
}

}  // namespace gpu

void PackedAttention::gpu(Stream s) const {
    dim3 blocks(count, a.NH);
    constexpr int threads = gpu::segment_warps * 32;
    if (sizeof(floatX) == 2 && has_flash_kernels(a.HS))
        return gpu::with_head_size(a.HS, [&](auto head_size) {
            constexpr int HS = decltype(head_size)::value;
            constexpr size_t bytes = 3 * segment_rows * (HS + 8) * sizeof(bf16);
            allow_shared(gpu::packed_tiles_kernel<HS>, bytes);
            LAUNCH(gpu::packed_tiles_kernel<HS>, blocks, threads, bytes, s, o, qkv, tiles, a.NH,
                   (float)a.scale() * log2_e);
        });

    size_t bytes = gpu::segment_warps * 2 * a.HS * sizeof(real);
    allow_shared(gpu::packed_attention_kernel, bytes);
    LAUNCH(gpu::packed_attention_kernel, blocks, threads, bytes, s, o, qkv, tiles, a.scale(), a.ld_qkv(),
           a.HS);
}

void StoreCacheRows::gpu(Stream s) const {
    LAUNCH(gpu::store_cache_rows_kernel, ceil_div((long)N * width, 256), 256, 0, s, cache, rows, cache_slots,
           N, width);
}
#endif
