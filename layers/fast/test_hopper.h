// test_hopper.h   sm_90a: descriptors and layouts against CUTLASS's, attention against ref and against the
//                 kernels of sm_80
#pragma once
#include "../../data/json.h"
#include "../base/file_writer.h"
#include "../base/hardware.h"
#include "flash_dispatch.cuh"
#include "../test_kernels.h"

#if HAS_KERNELS
// the kernels' descriptors, and the addresses that the emulated device reads, against hopper_facts.json
void hopper_tiles(const Json& facts, const std::string& file) {
    for (auto& member : facts.at("tiles", file).members) {
        const std::string& name = member.first;
        const Json& tile = member.second;
        auto number = [&](const char* key) { return (int)tile.at(key, file).number(file); };
        int rows = number("rows"), columns = number("columns");
        bool k_major = tile.at("k_major", file).text == "true", right = true, found = true;
        const std::vector<Json>& pieces = tile.at("pieces", file).items;
        auto place = [&](int row, int column) {  // of an element, in bytes
            int i = k_major ? row * (columns / 8) + column / 8 : column * (rows / 8) + row / 8;
            return (uint32_t)pieces[i].number(file) * 16 + 2 * (k_major ? column % 8 : row % 8);
        };
        for (int k = 0; k < columns; k += 16) {
            const Json& descriptor = tile.at("descriptors", file).items[k / 16];
            uint64_t wanted = strtoull(descriptor.string(file).c_str(), nullptr, 16);
            uint32_t abreast = rows > 64 ? (uint32_t)columns * 128 : 0;
            uint64_t mine = k_major ? gpu::rows_descriptor(0, k) : gpu::columns_descriptor(0, k, abreast);
            right = right && mine == wanted;
#if defined(DEVICE_EMULATED)
            for (int row = 0; row < rows; row++)
                for (int i = 0; i < 16; i++)
                    found = found && emulated::operand_address(wanted, k_major, row, i) == place(row, k + i);
#endif
        }
        check(right, "descriptors: " + name);
        check(found && pieces.size() == (size_t)rows * columns / 8, "operands by their descriptors: " + name);
        // TMA's boxes: 64 columns of a row-major matrix, whose rows are K or not
        bool brought = true;
        for (int row = 0; row < rows; row++)
            for (int column = 0; column < columns; column++) {
                int r = k_major ? row : column, c = k_major ? column : row;
                uint32_t box = (uint32_t)(k_major ? rows : columns) * 128;
                uint32_t at = (uint32_t)(c / 64) * box + (uint32_t)r * 128 + (uint32_t)(c % 64) * 2;
                brought = brought && (at ^ (at >> 3 & 0x70)) == place(row, column);
            }
        check(brought, "what TMA brings: " + name);
    }
}

// place(thread, value) of each value that a thread of the warpgroup holds: (row, column)
template <class Place>
bool hopper_holds(const Json& facts, const std::string& file, const char* name, int values, Place place) {
    const std::vector<Json>& threads = facts.at("registers", file).at(name, file).items;
    bool right = threads.size() == 128;
    for (int t = 0; t < 128 && right; t++)
        for (int v = 0; v < values && right; v++) {
            auto [row, column] = place(t, v);
            right = (int)threads[t].items[v].number(file) == row + 64 * column;
        }
    return right;
}

void hopper_registers(const Json& facts, const std::string& file) {
    auto row = [](int t, int v) { return t / 32 * 16 + t % 32 / 4 + v / 2 % 2 * 8; };
    auto column = [](int t, int v) { return v / 4 * 8 + t % 4 * 2 + v % 2; };
    auto place = [&](int t, int v) { return std::pair(row(t, v), column(t, v)); };
    check(hopper_holds(facts, file, "C 64 x 128", 64, place), "accumulators, N 128");
    check(hopper_holds(facts, file, "A 64 x 16", 8, place), "the first operand in registers");
}

// how far two ways to compute the n values at x are apart, as the relative rms. Each rounds to bf16 twice, by
// at most 2^-8 and on average by less: an rms difference of 2^-8 is too much
template <class T, class Run>
double ways_differ(const T* x, size_t n, Run run) {
    std::vector<T> values[2];
    for (bool way : {false, true}) {
        run(way);
        check(!take_expired_wait(nullptr), "no wait for an mbarrier expires");
        values[way].resize(n);
        copy_to_host(values[way].data(), x, n * sizeof(T), nullptr);
    }
    return rms_off(values[1], values[0]);
}
constexpr double too_much = 0x1p-8;

// the kernels of sm_80 and of sm_90a on one sequence
void hopper_beside_sm80(X& o, R& lse, X& dqkv, const FlashScratch& scratch, X& dout, X& qkv,
                        AttentionShape a, const std::string& size) {
    a.B = 1;
    auto forward = [&](bool hopper) {
        FlashForward{o.device, lse.device, qkv.device, a}.compute_with(hopper, nullptr);
    };
    auto backward = [&](bool hopper) {
        FlashBackward{dqkv.device, scratch, dout.device, o.device, lse.device, qkv.device, a}.compute_with(
            hopper, nullptr);
    };
    auto alike = [&](const char* what, double off) {
        check(off < too_much, text("beside sm_80's: %s differ by %.2g (relative rms)", what, off) + size);
    };
    alike("outputs", ways_differ(o.device, (size_t)a.T * a.ld_o(), forward));
    alike("lse", ways_differ(lse.device, (size_t)a.NH * a.T, forward));
    alike("gradients", ways_differ(dqkv.device, (size_t)a.T * a.ld_qkv(), backward));

    auto of_another = [&](bool way) {
        const floatX* input = way ? dqkv.device : qkv.device;
        FlashForward{o.device, lse.device, input, a}.compute_with(false, nullptr);
    };
    double other = ways_differ(o.device, (size_t)a.T * a.ld_o(), of_another);
    check(other > too_much, "another input is seen" + size);
}

void hopper_attention() {
    struct Size { int B, T, NH, HS; };
    std::vector<Size> sizes = {{1, 1, 1, 64},   {2, 17, 2, 64},  {1, 128, 1, 128}, {1, 129, 2, 64},
                               {2, 200, 1, 128}, {1, 300, 1, 64}, {1, 520, 1, 128},
                               {1, 150, 2, 80}, {2, 300, 1, 96}, {2, 300, 2, 64}};

    // more blocks than SMs, and blocks that wait for one another's turns
    if (!host_is_device) sizes.insert(sizes.end(), {{4, 2048, 12, 64}, {2, 2048, 16, 128}, {3, 1000, 8, 64},
                                                    {2, 2048, 12, 80}, {3, 1000, 8, 96}});
    for (const Size& each : sizes) {
        int B = each.B, T = each.T, NH = each.NH, HS = each.HS;
        AttentionShape a = {B, T, NH, HS};
        long n = B * T * a.ld_qkv(), m = B * T * a.ld_o(), rows = (long)B * NH * T;
        X qkv(random_values<floatX>(n, 1)), o(m), old(m);
        R lse(rows), old_lse(rows);
        std::string size = text(" B %d T %d NH %d HS %d", B, T, NH, HS);

        FlashForward{o.ref(), lse.ref(), qkv.ref(), a}.ref(nullptr);
        FlashForward{o.device, lse.device, qkv.device, a}.compute_with(true, nullptr);
        close_by_position("Hopper's attention o" + size, o.back(), o.host, a, 1, 2 * rounding);
        lse.compare("Hopper's attention lse" + size, 1e-5);
        for (int ctas : {1, 2, 3, 7}) {  // however many share the tiles of queries
            X shared(m);
            R shared_lse(rows);
            gpu::with_head_size(HS, [&](auto head_size) {
                if constexpr (gpu::has_hopper_kernels(head_size))
                    gpu::flash_forward_hopper<head_size>(shared.device, shared_lse.device, qkv.device, a,
                                                         nullptr, ctas);
            });
            check(shared.back() == o.back() && shared_lse.back() == lse.back(),
                  text("by %d CTAs", ctas) + size);
        }
        FlashForward{old.device, old_lse.device, qkv.device, a}.compute_with(false, nullptr);
        close_by_position("Hopper's attention beside sm_80's" + size, o.back(), old.back(), a, 1,
                          2 * rounding);

        X dout(random_values<floatX>(m, 2)), dqkv(n);
        R terms(flash_query_terms(B, NH, T)), dq(flash_dq(B, NH, T, HS));
        Both<int> turns(flash_turns(B, NH, T));
        R parts(flash_dqkv_sums(a));
        FlashScratch scratch = {terms.device, dq.device, turns.device, parts.device};
        SumsOnTheWay db(a.ld_qkv());
        FlashBackward{dqkv.ref(), {}, dout.ref(), o.ref(), lse.ref(), qkv.ref(), a}.ref(nullptr);

        std::vector<floatX> first;
        for (int again = 0; again < 2; again++) {
            FlashBackward{dqkv.device, scratch, dout.device, o.device, lse.device, qkv.device, a,
                          db.out.device, db.scratch.device, db.accumulate}.compute_with(true, nullptr);
            close_by_position("Hopper's attention dqkv" + size, dqkv.back(), dqkv.host, a, 3, 4 * rounding);
            std::vector<floatX> back = dqkv.back();
            db.compare("Hopper's attention, bias gradient" + size, back);
            if (again)
                check(!memcmp(back.data(), first.data(), n * sizeof(floatX)), "bit for bit again" + size);
            first = back;
        }
        std::vector<real> sums = parts.back();
        for (int ctas : {1, 2, 3, 7, B * NH * ceil_div(T, 128)}) {  // however many share the blocks of keys
            set_zero(turns.device, flash_turns(B, NH, T) * sizeof(int), nullptr);
            set_zero(dqkv.device, n * sizeof(floatX), nullptr);
            set_zero(parts.device, flash_dqkv_sums(a) * sizeof(real), nullptr);
            gpu::with_head_size(HS, [&](auto head_size) {
                if constexpr (gpu::has_hopper_kernels(head_size))
                    gpu::flash_backward_hopper<head_size>(dqkv.device, scratch, dout.device, qkv.device, a,
                                                          nullptr, ctas);
            });
            check(dqkv.back() == first && parts.back() == sums, text("backward by %d CTAs", ctas) + size);
        }

        hopper_beside_sm80(o, lse, dqkv, scratch, dout, qkv, a, size);
    }
}

void test_hopper() {
    std::string file = "scripts/hopper_facts.json";
    MappedFile mapped(file);
    Json facts = Json::parse(mapped.view(), file);
    hopper_tiles(facts, file);
    hopper_registers(facts, file);
    if (sizeof(floatX) != 2 || !device_is_hopper()) return;
    in_several_orders(hopper_attention);
}
#endif
