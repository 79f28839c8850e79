// hopper_on_cpu.h   what hopper.h needs of the emulated device: the asynchronous units of sm_90a
//   TMA        a box arrives in pieces of 16 bytes, in any order: soon or, for half of the boxes, only when
//              nothing else can run; until then its memory holds NaN. Every piece counts towards the
//              mbarrier, even those outside the tensor
//   wgmma      a warp's products are computed either when their group is committed or when it is waited for,
//              at random. Until the wait returns the accumulators hold NaN; writing them, or the registers of
//              the first operand, is an error. Operands are located by their descriptors alone, with the
//              swizzle of absolute addresses, by the rules in scripts/hopper_facts.json
//   bulk       at random, a group reads its source when it is committed or when that read is waited for, and
//              arrives then or when its completion is waited for; to shared memory, it arrives as a TMA box
//   addresses  of shared memory: offsets from a base that is aligned to 16 bytes and no more
#pragma once
#include <array>
#include "../base/numbers.h"
#include "streams_on_cpu.h"

namespace emulated {

// where dynamic shared memory begins: a kernel may only rely on an alignment of 16 bytes
inline uint32_t shared_base() { return 1024 + 16 * (uint32_t)(mix(seed) % 64); }
inline uint32_t shared_offset(const void* p, const char* what) {
    const Shared& all = worker->dynamic_shared;
    if ((const char*)p < all.bytes || (const char*)p >= all.bytes + all.bytes_count)
        fail("%s: %p does not lie in dynamic shared memory", what, p);
    return shared_base() + (uint32_t)((const char*)p - all.bytes);
}

inline char* shared_at(uint32_t address) {
    const Shared& all = worker->dynamic_shared;
    if (address < shared_base() || address + 16 > shared_base() + all.bytes_count)
        fail("wgmma: address %u, shared memory is %zu bytes from %u on", address, all.bytes_count,
             shared_base());
    return all.bytes + (address - shared_base());
}

// 128-byte swizzle: the 16-byte pieces of row r are permuted: their numbers are XORed with r % 8
constexpr uint32_t swizzle_128(uint32_t address) { return address ^ (address >> 3 & 0x70); }

// ---- mbarrier --------------------------------------------------------------------------------------------

struct alignas(8) Mbarrier {
    uint16_t count;    // arrivals per phase; bit 15: parity of the current phase
    uint16_t pending;  // arrivals still to come
    int32_t bytes;     // bytes still to come

    int parity() const { return count >> 15; }
    int wanted() const { return count & 0x7FFF; }
    void check(const char* what) const {
        if (count == 0xFFFF) fail("%s: the mbarrier was not initialised", what);
    }

    void advance() {
        if (pending > 0 || bytes != 0) return;
        count ^= 0x8000;
        pending = (uint16_t)wanted();
        for (int t = 0; t < (int)worker->threads.size(); t++)
            if (worker->threads[t].state == Thread::AtMbarrier && worker->threads[t].mbarrier == this)
                worker->release(t);
    }

    void arrive() {
        check("mbarrier.arrive");
        if (pending == 0) fail("mbarrier.arrive: more than the %d arrivals of a phase", wanted());
        worker->release_written(worker->current);
        pending--;
        advance();
    }

    void complete(int n) {
        check("a copy");
        if (bytes < n) fail("a copy brings %d bytes to an mbarrier that expects %d more", n, bytes);
        bytes -= n;
        advance();
    }
};

inline std::string describe_mbarrier(const void* p) {
    const Mbarrier& b = *(const Mbarrier*)p;
    return text("an mbarrier in a phase of parity %d awaits %d of %d arrivals and %d bytes", b.parity(),
                b.pending, b.wanted(), b.bytes);
}

inline void init_mbarrier(Mbarrier* b, int arrivals) {
    if ((uintptr_t)b % 8 || arrivals < 1 || arrivals > 1024) fail("mbarrier.init: %d arrivals", arrivals);
    *b = {(uint16_t)arrivals, (uint16_t)arrivals, 0};
    worker->mbarriers_unseen = true;
}

inline void fence_mbarriers() { worker->mbarriers_unseen = false; }
inline void wait_mbarrier(Mbarrier* b, int parity) {
    b->check("mbarrier.try_wait");
    while (b->parity() == parity) {
        Thread& t = worker->threads[worker->current];
        worker->describe_mbarrier = describe_mbarrier;
        t.mbarrier = b;
        t.state = Thread::AtMbarrier;
        worker->wait();
    }
}

// ---- TMA -------------------------------------------------------------------------------------------------

// a tensor of bf16, its first dimension contiguous, in boxes whose rows of 128 bytes are swizzled
struct TensorMap {
    const char* base;
    uint64_t size[4], stride[4];  // stride: bytes, of dimensions 1 to 3
    uint32_t box[4];
};

inline TensorMap make_tensor_map(const void* base, const uint64_t (&size)[4], const uint64_t (&stride)[4],
                                 const uint32_t (&box)[4]) {
    TensorMap map = {(const char*)base, {}, {}, {}};
    if ((uintptr_t)base % 16) fail("a tensor map: %p is not aligned to 16 bytes", base);
    for (int i = 0; i < 4; i++) {
        if (size[i] == 0 || size[i] > 1ull << 32)
            fail("a tensor map: dimension %d of %zu", i, (size_t)size[i]);
        if (i > 0 && (stride[i] % 16 || stride[i] >= 1ull << 40))
            fail("a tensor map: dimension %d has a stride of %zu bytes, expected a multiple of 16 below 2^40",
                 i, (size_t)stride[i]);
        if (box[i] == 0 || box[i] > 256) fail("a tensor map: a box of %u, expected 1 to 256", box[i]);
        map.size[i] = size[i];
        map.stride[i] = stride[i];
        map.box[i] = box[i];
    }

    if (box[0] * 2 != 128) fail("a tensor map: a swizzled row of %u bytes, expected 128", box[0] * 2);
    return map;
}

inline void begin_box(void* to, const TensorMap& map, Mbarrier* barrier, const int (&first)[4]) {
    barrier->check("TMA");
    if (worker->mbarriers_unseen) fail("TMA: no fence.mbarrier_init behind mbarrier.init");
    uint32_t address = shared_offset(to, "TMA");
    if (address % 1024) fail("TMA: a swizzled box at %u, which is not aligned to 1024 bytes", address);

    uint32_t rows = map.box[1] * map.box[2] * map.box[3];
    bool is_late = worker->luck() % 2;
    shared_at(address + rows * 128 - 16);  // fails if the box's end is outside
    memset(to, 0xFF, rows * 128);

    for (uint32_t row = 0; row < rows; row++) {
        int64_t at[4] = {first[0], first[1] + row % map.box[1], first[2] + row / map.box[1] % map.box[2],
                         first[3] + row / map.box[1] / map.box[2]};
        bool inside = true;
        const char* from = map.base;
        for (int i = 1; i < 4; i++) {
            inside = inside && at[i] >= 0 && at[i] < (int64_t)map.size[i];
            from += at[i] * (int64_t)map.stride[i];
        }

        for (int piece = 0; piece < 8; piece++) {
            int64_t column = at[0] + piece * 8;
            if (column < (int64_t)map.size[0] && column + 8 > (int64_t)map.size[0])
                fail("TMA: a tensor's border within 16 bytes is not emulated");
            bool is_there = inside && column >= 0 && column < (int64_t)map.size[0];
            const char* source = is_there ? from + column * 2 : nullptr;
            char* target = shared_at(swizzle_128(address + row * 128 + (uint32_t)piece * 16));
            (is_late ? worker->late : worker->arriving).push_back([=] {
                if (source) memcpy(target, source, 16);
                else memset(target, 0, 16);
                barrier->complete(16);
            });
        }
    }
}

// ---- what threads write for asynchronous units -----------------------------------------------------------

inline void fence_written() {
    for (auto& [place, written] : worker->written) written.is_fenced |= written.thread == worker->current;
}

// copies 16 bytes
inline void store_for_async(void* to, const void* from) {
    memcpy(to, from, 16);
    worker->written[shared_offset(to, "a store for async") / 16] = {worker->current, false};
}

inline void stmatrix(void* row, const uint32_t (&r)[4], Site site) {
    struct Args {
        char* row;
        const uint32_t* r;
    } mine = {(char*)row, r};
    if (shared_offset(row, "stmatrix") % 16) fail("stmatrix: a row that is not aligned to 16 bytes");
    warp_collective<Args>(0xffffffffu, mine, site, [](Args* lanes[32], unsigned) {
        int first = worker->current / 32 * 32;
        for (int m = 0; m < 4; m++)
            for (int i = 0; i < 8; i++) {
                char* to = lanes[8 * m + i]->row;
                for (int j = 0; j < 4; j++) memcpy(to + 4 * j, &lanes[4 * i + j]->r[m], 4);
                worker->written[shared_offset(to, "stmatrix") / 16] = {first + 8 * m + i, false};
            }
    });
}

// ---- bulk copies -----------------------------------------------------------------------------------------

// a thread's copies, the uncommitted ones last
inline void begin_bulk(float* to, const void* from, int bytes, bool adds) {
    uint32_t first = shared_offset(from, "a bulk copy");
    if (bytes <= 0 || (bytes | (uintptr_t)to | first) % 16)
        fail("a bulk copy of %d bytes from %u: all must be multiples of 16", bytes, first);
    shared_at(first + (uint32_t)bytes - 16);  // fails if the source's end is outside
    for (uint32_t piece = first / 16; piece < (first + (uint32_t)bytes) / 16; piece++)
        if (auto found = worker->written.find(piece); found != worker->written.end())
            fail("a bulk copy reads what thread %d has written, without fence.proxy.async and a barrier "
                 "behind it", found->second.thread);
    worker->bulk[worker->current].push_back({to, (const float*)from, bytes / 4, adds, false, {}});
}

inline void read_bulk() {
    for (Bulk& each : worker->bulk[worker->current]) {
        if (!each.is_committed) fail("cp.async.bulk.wait_group: a copy was not committed");
        if (each.values.empty()) each.values.assign(each.from, each.from + each.count);
    }
}

// from what other blocks have written to global memory
inline void begin_bulk_load(void* to, const float* from, int bytes, Mbarrier* barrier) {
    barrier->check("a bulk copy");
    if (worker->mbarriers_unseen) fail("a bulk copy: no fence.mbarrier_init behind mbarrier.init");
    uint32_t first = shared_offset(to, "a bulk copy");
    if (bytes <= 0 || (bytes | (uintptr_t)from | first) % 16)
        fail("a bulk copy of %d bytes to %u: all must be multiples of 16", bytes, first);
    shared_at(first + (uint32_t)bytes - 16);  // fails if the target's end is outside
    Thread& t = worker->threads[worker->current];
    if (!t.turn) fail("bulk_load: requires a wait_until by the same thread, a new one for each copy");
    t.turn = nullptr;

    bool is_late = worker->luck() % 2;
    for (int at = 0; at < bytes; at += 16) {
        if (worker->written.count((first + (uint32_t)at) / 16))
            fail("a bulk copy overwrites what a thread has written, without a barrier behind it");
        std::array<float, 4> values;
        memcpy(&values, from + at / 4, 16);
        memset((char*)to + at, 0xFF, 16);
        (is_late ? worker->late : worker->arriving).push_back([=] {
            [[maybe_unused]] watch::Unwatched emulator;
            if (memcmp(&values, from + at / 4, 16)) fail("a bulk copy's source is written while it is read");
            memcpy((char*)to + at, &values, 16);
            barrier->complete(16);
        });
    }
}

inline void finish_bulk() {
    // other threads may write to the source, if it has not been read
    if (worker->luck() % 2) worker->let_others_run();
    read_bulk();
    for (Bulk& each : worker->bulk[worker->current])
        for (int i = 0; i < each.count; i++) {
            float before = each.adds ? each.to[i] : 0;
            each.to[i] = before + each.values[(size_t)i];
        }
    worker->bulk.erase(worker->current);
    worker->threads[worker->current].bulk_is_done = true;
}

inline void commit_bulk() {
    for (Bulk& each : worker->bulk[worker->current]) each.is_committed = true;
    uint64_t luck = worker->luck() % 3;
    if (luck == 0) read_bulk();
    if (luck == 1) finish_bulk();
}

// ---- wgmma -----------------------------------------------------------------------------------------------

// address of an operand's element, by the descriptor; mn: row of the first, column of the second operand
inline uint32_t operand_address(uint64_t descriptor, bool k_major, int mn, int k) {
    uint32_t start = (descriptor & 0x3FFF) << 4, leading = (descriptor >> 16 & 0x3FFF) << 4,
             stride = (descriptor >> 32 & 0x3FFF) << 4;
    if (descriptor >> 62 != 1) fail("wgmma: a descriptor without 128-byte swizzle is not emulated");
    if (descriptor >> 49 & 7) fail("wgmma: a descriptor with a base offset is not emulated");
    uint32_t at = k_major ? (uint32_t)(mn / 8) * stride + (uint32_t)(mn % 8) * 128 + (uint32_t)k * 2
                          : (uint32_t)(mn / 64) * leading + (uint32_t)(k / 8) * stride +
                            (uint32_t)(k % 8) * 128 + (uint32_t)(mn % 64) * 2;
    return swizzle_128(start + at);
}

inline void check_readable(uint32_t address) {
    if (worker->written.empty()) return;
    auto found = worker->written.find(address / 16);
    if (found == worker->written.end()) return;
    auto [thread, is_fenced] = found->second;
    if (!is_fenced)
        fail("wgmma reads what thread %d has written, without fence.proxy.async behind it", thread);
    if (thread / 32 != worker->current / 32)
        fail("wgmma reads what thread %d has written, without a barrier behind its fence", thread);
}

inline float operand(uint64_t descriptor, bool k_major, int mn, int k) {
    uint32_t address = operand_address(descriptor, k_major, mn, k);
    check_readable(address);
    bf16 x;
    memcpy(&x.bits, shared_at(address / 16 * 16) + address % 16, 2);
    return (float)x;
}

struct Product {  // of a warp: D (16, N) += A (16, 16) B (16, N)
    uint64_t a, b;
    bool a_in_registers, a_k_major, b_k_major, adds;
    int N;
    std::array<float*, 32> d;
    std::array<const uint32_t*, 32> a_at;
    std::array<std::array<uint32_t, 4>, 32> a_registers;
};

struct WarpProducts {
    std::deque<std::vector<Product>> groups = {{}};  // the last one is open
    size_t computed = 0;                             // how many groups, from the oldest
    uint64_t commits = 0;
    bool fenced = false;
    std::map<float*, std::vector<float>> accumulators;  // in flight: the values they will have

    void compute(const Product& p) {
        [[maybe_unused]] watch::Unwatched emulator;
        int first = worker->current % 128 / 32 * 16;  // this warp's, of the warpgroup's 64 rows

        std::vector<float> A(16 * 16), B(16 * (size_t)p.N);
        for (int k = 0; k < 16; k++) {
            for (int n = 0; n < p.N; n++) B[(size_t)k * p.N + n] = operand(p.b, p.b_k_major, n, k);
            for (int m = 0; m < 16 && !p.a_in_registers; m++)
                A[m * 16 + k] = operand(p.a, p.a_k_major, first + m, k);
        }

        // the product is the warpgroup's: until all of its warps have waited, none may write to its rows
        for (int m = 0; m < 64 && !p.a_in_registers; m += p.a_k_major ? 1 : 8)
            for (int k = 0; k < 16; k += p.a_k_major ? 8 : 1)
                check_readable(operand_address(p.a, p.a_k_major, m, k));

        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 8 && p.a_in_registers; i++) {
                bf16 x;
                x.bits = (uint16_t)(p.a_registers[l][i / 2] >> 16 * (i % 2));
                A[(l / 4 + i / 2 % 2 * 8) * 16 + l % 4 * 2 + i % 2 + i / 4 * 8] = (float)x;
            }

        for (int l = 0; l < 32; l++) {
            std::vector<float>& d = accumulators.at(p.d[l]);
            for (int i = 0; i < p.N / 2; i++) {
                int row = l / 4 + i / 2 % 2 * 8, column = l % 4 * 2 + i % 2 + i / 4 * 8;
                float sum = p.adds ? d[i] : 0;
                for (int k = 0; k < 16; k++) sum += A[row * 16 + k] * B[(size_t)k * p.N + column];
                d[i] = sum;
            }
        }
    }

    void compute_groups(size_t count) {
        for (; computed < count; computed++)
            for (const Product& p : groups[computed]) compute(p);
    }

    void take(Product& p) {
        if (!fenced) fail("wgmma: a group without a wgmma.fence before its first product");
        for (int l = 0; l < 32; l++) {
            auto [found, is_new] = accumulators.try_emplace(p.d[l]);
            if (is_new) found->second.assign(p.d[l], p.d[l] + p.N / 2);
            else check_untouched(p.d[l], p.N / 2);
            if (found->second.size() != (size_t)p.N / 2)
                fail("wgmma: accumulators in flight of another shape");
            memset(p.d[l], 0xFF, (size_t)p.N / 2 * sizeof(float));
        }
        groups.back().push_back(p);
    }

    static void check_untouched(const float* d, int n) {
        for (int i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, d + i, 4);
            if (bits != 0xFFFFFFFF)
                fail("wgmma: accumulator %d is written while products are in flight", i);
        }
    }

    void commit(bool at_once) {
        groups.emplace_back();
        if (at_once) compute_groups(groups.size() - 1);
        fenced = false;
    }

    void wait(size_t left) {
        fenced = false;
        while (groups.size() > left + 1) {
            compute_groups(1);
            std::vector<Product> done = std::move(groups.front());
            groups.pop_front();
            computed--;
            for (const Product& p : done)
                for (int l = 0; l < 32 && p.a_in_registers; l++)
                    if (memcmp(p.a_at[l], p.a_registers[l].data(), 16))
                        fail("wgmma: the first operand's registers are written while it is in flight");
            retire();
        }
    }

    void retire() {  // hands over accumulators that no product in flight adds to
        std::map<float*, bool> busy;
        for (auto& group : groups)
            for (auto& p : group)
                for (float* d : p.d) busy[d] = true;
        for (auto i = accumulators.begin(); i != accumulators.end();) {
            if (busy.count(i->first)) {
                ++i;
                continue;
            }
            check_untouched(i->first, (int)i->second.size());
            std::copy(i->second.begin(), i->second.end(), i->first);
            i = accumulators.erase(i);
        }
    }
};

inline WarpProducts& warp_products() {
    std::shared_ptr<void>& of = worker->products[worker->current / 32];
    if (!of) of = std::make_shared<WarpProducts>();
    return *(WarpProducts*)of.get();
}

inline void commit_products() {
    WarpProducts& mine = warp_products();
    mine.commit(mix(worker->key ^ (uint64_t)worker->current / 32 ^ ++mine.commits << 32) % 2);
}

// runs once for a warp; an error is attributed to the lane that came last
template <class Run>
void as_warp(Site site, Run run) {
    struct Args {
        Run* run;
    } mine = {&run};
    warp_collective<Args>(0xffffffffu, mine, site, [](Args* lanes[32], unsigned) { (*lanes[0]->run)(); });
}

struct WgmmaCall {
    float* d;
    uint64_t a, b;
    const uint32_t* a_registers;  // nullptr: the first operand is in shared memory
    bool a_k_major, b_k_major, adds;
    int N;
};
inline void wgmma(WgmmaCall call, Site site) {
    warp_collective<WgmmaCall>(0xffffffffu, call, site, [](WgmmaCall* lanes[32], unsigned) {
        const WgmmaCall& first = *lanes[0];
        Product p = {first.a, first.b, first.a_registers != nullptr, first.a_k_major, first.b_k_major,
                     first.adds, first.N, {}, {}, {}};

        for (int l = 0; l < 32; l++) {
            if (lanes[l]->a != first.a || lanes[l]->b != first.b || lanes[l]->adds != first.adds)
                fail("wgmma: lanes of one warp bring different operands");
            p.d[l] = lanes[l]->d;
            p.a_at[l] = lanes[l]->a_registers;
            if (p.a_at[l]) std::copy(p.a_at[l], p.a_at[l] + 4, p.a_registers[l].begin());
        }
        warp_products().take(p);
    });
}

}  // namespace emulated
