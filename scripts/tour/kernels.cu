// kernels.cu   two kernels on the emulated device, access by access, as JSON for the tour's second chapter
//   One line a kernel: {"kernel", "grid", "block", "tensors": [{name, type, rows, columns}],
//   "lines": [file:line …], "counts": {line: [requests, sectors, used, turns, least_turns]},
//   "accesses": [[thread, barriers passed, tensor or -1 (shared memory), first byte, bytes, writes, line] …]}
//   of the first block of the launch. Needs SANITIZE=thread, DEVICE=emulated and PRECISION=bf16.
#include <cstdio>
#include "../../layers/compute.cu"

using emulated::watch::Traced;

struct TracedTensor {
    const char *name, *type;
    long rows, columns, bytes;
    char* data;
};

class KernelTrace {
    std::vector<TracedTensor> tensors;

public:
    template <class T>
    T* tensor(const char* name, const char* type, long rows, long columns) {
        long bytes = rows * columns * (long)sizeof(T);
        T* data = (T*)device_malloc(bytes, "tour");
        std::vector<T> values((size_t)(rows * columns));
        for (size_t i = 0; i < values.size(); i++) values[i] = T(0.01f * (float)((i * 37) % 100) - 0.5f);
        copy_to_device(data, values.data(), bytes, nullptr);
        synchronize(nullptr);
        tensors.push_back({name, type, rows, columns, bytes, (char*)data});
        return data;
    }

    // run: launches the kernel once
    template <class Run>
    void print(const char* kernel, int grid, int block, Run run) {
        emulated::watch::trace(true);
        emulated::watch::count(true);
        run();
        synchronize(nullptr);
        emulated::watch::count(false);
        emulated::watch::trace(false);
        printf("{\"kernel\": \"%s\", \"grid\": %d, \"block\": %d, \"tensors\": [", kernel, grid, block);
        for (auto& t : tensors)
            printf("%s{\"name\": \"%s\", \"type\": \"%s\", \"rows\": %ld, \"columns\": %ld}",
                   &t == &tensors[0] ? "" : ", ", t.name, t.type, t.rows, t.columns);
        printf("], ");
        print_accesses(emulated::watch::take_trace());
        print_counts();
        printf("}\n");
    }

private:
    void print_accesses(const std::vector<Traced>& all) {
        std::vector<std::string> lines;
        std::string list;
        for (auto& a : all) {
            auto line = std::find(lines.begin(), lines.end(), a.line);
            if (line == lines.end()) line = lines.insert(lines.end(), a.line);
            int of = -1;
            for (int i = 0; i < (int)tensors.size() && !a.is_shared; i++)
                if (a.address >= tensors[i].data && a.address < tensors[i].data + tensors[i].bytes) of = i;
            if (of < 0 && !a.is_shared)
                fail("tour: an access to memory that has no name, at %s", a.line.c_str());
            long at = of < 0 ? (long)(size_t)a.address : a.address - tensors[of].data;
            list += text("%s[%d,%d,%d,%ld,%d,%d,%d]", list.empty() ? "" : ",", a.thread, a.barriers, of, at,
                         a.bytes, (int)a.writes, (int)(line - lines.begin()));
        }
        printf("\"lines\": [");
        for (auto& line : lines) printf("%s\"%s\"", &line == &lines[0] ? "" : ", ", line.c_str());
        printf("], \"accesses\": [%s], ", list.c_str());
    }

    void print_counts() {
        printf("\"counts\": {");
        const char* before = "";
        for (auto& [kernel, by_line] : emulated::watch::take_counts())
            for (auto& [line, c] : by_line) {
                printf("%s\"%s\": [%ld, %ld, %ld, %ld, %ld]", before, line.c_str(), c.requests, c.sectors,
                       c.used, c.turns, c.least_turns);
                before = ", ";
            }
        printf("}");
    }
};

int main() {
    constexpr int N = 8, C = 256;
    KernelTrace norm;
    auto* y = norm.tensor<bf16>("y", "bf16", N, C);
    NormStats stats = {norm.tensor<real>("mean", "fp32", N, 1), norm.tensor<real>("rstd", "fp32", N, 1)};
    auto* x = norm.tensor<bf16>("x", "bf16", N, C);
    auto* w = norm.tensor<bf16>("w", "bf16", C, 1);
    auto* b = norm.tensor<bf16>("b", "bf16", C, 1);
    norm.print("layernorm_forward_rows_kernel", ceil_div(N, gpu::row_threads(1) / 32), gpu::row_threads(1),
               [&] { LayerNormForward{y, stats, x, w, b, N, C}.gpu(nullptr); });

    constexpr int T = 128, HS = 64;
    KernelTrace attention;
    auto* o = attention.tensor<bf16>("o", "bf16", T, HS);
    auto* lse = attention.tensor<real>("lse", "fp32", T, 1);
    auto* qkv = attention.tensor<bf16>("qkv", "bf16", T, 3 * HS);
    attention.print("flash_forward_kernel", 1, 128,
                    [&] { gpu::flash_forward<HS>(o, lse, qkv, AttentionShape{1, T, 1, HS}, nullptr); });
}
