// hardware.h   the one table of GPUs, and what the device that is present reports about itself
//   Sources: NVIDIA's data sheets, dense bf16 (H100, H200 SXM: the architecture's white paper, 989.4
//   TFLOP/s). memory, bandwidth and sms are given for GPUs that layers/plan/machines.h plans for, else 0.
#pragma once
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>
#include <sstream>
#include "device.h"

struct Gpu {
    const char* name;        // a part of the device's own name
    double peak;             // FLOP/s of dense bf16 GEMMs
    double memory = 0;       // bytes
    double bandwidth = 0;    // of that memory, bytes/s
    int sms = 0;             // streaming multiprocessors
    double fp8 = 0;          // fp8 rate relative to bf16; 0: none, or unknown
};

// the first entry whose name is part of the device's own applies
constexpr Gpu gpus[] = {
    {"GB200", 2500e12},
    {"B200", 2250e12},
    {"GH200", 989.4e12},
    {"H200 NVL", 835.5e12},
    {"NVIDIA H200", 989.4e12, 141e9, 4.8e12, 132, 2},
    {"H200", 989.4e12},
    {"H100 PCIe", 756e12},
    {"H100 NVL", 835e12},
    {"H100 80GB HBM3", 989.4e12, 80e9, 3.35e12, 132, 2},
    {"H100", 989.4e12},
    {"A100-SXM4-80GB", 312e12, 80e9, 2.039e12, 108},
    {"A100-SXM4-40GB", 312e12, 40e9, 1.555e12, 108},
    {"A100", 312e12},
    {"L40S", 362e12, 48e9, 864e9, 142, 2},
    {"A40", 150e12},
    {"L4", 121e12},
    {"RTX PRO 6000", 503.8e12, 96e9, 1.792e12, 188, 2},
    {"RTX 5090", 209.5e12, 32e9, 1.792e12, 170, 2},
    {"RTX 5080", 112.6e12},
    {"RTX 4090", 165.2e12, 24e9, 1.008e12, 128, 2},
    {"RTX 4080", 97.5e12},
    {"RTX 3090", 71e12},
    {"RTX 3080", 59.5e12},
};

// nullptr: unknown
inline const Gpu* find_gpu(const std::string& device) {
    for (auto& gpu : gpus) {
        size_t at = device.find(gpu.name), end = at + strlen(gpu.name);
        if (at == device.npos) continue;
        if (device.compare(end, 7, " Laptop") == 0 || device.compare(end, 3, " D") == 0) continue;
        if (end >= device.size() || !isdigit(device[end])) return &gpu;  // an RTX A4000 is no A40
    }
    return nullptr;
}

// FLOP/s, or 0 if unknown, as in precisions other than bf16
inline double device_peak(const std::string& device) {
    const Gpu* gpu = find_gpu(device);
    return sizeof(floatX) == 2 && gpu ? gpu->peak : 0;
}

#if defined(DEVICE_CUDA)
// of this rank's device, queried once
inline const cudaDeviceProp& device_properties() {
    static const cudaDeviceProp properties = [] {
        cudaDeviceProp queried;
        check_cuda(cudaGetDeviceProperties(&queried, current_device()),
                   "no CUDA device can be used (build with make DEVICE=cpu to run without)");
        return queried;
    }();
    return properties;
}

// bytes of shared memory that all blocks of a multiprocessor have together
inline size_t shared_of_multiprocessor() { return device_properties().sharedMemPerMultiprocessor; }
inline int multiprocessors() { return device_properties().multiProcessorCount; }
#endif

// the name of this rank's device
inline std::string device_name() {
#if defined(DEVICE_CUDA)
    return device_properties().name;
#else
    return DEVICE_NAME;
#endif
}

#if defined(DEVICE_CUDA)  // the emulated one's: emulator/streams_on_cpu.h
// the newest CUDA that the driver supports: 12090 for 12.9
inline int driver_version() {
    int driver = 0;
    check_cuda(cudaDriverGetVersion(&driver), "the driver's version");
    return driver;
}
#endif

// the major version in the first line of /proc/driver/nvidia/version, 0 if there is none:
//   NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
//   NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build …
inline int driver_named_in(const std::string& line) {
    size_t module = line.find("Module ");
    std::istringstream words(module == line.npos ? "" : line.substr(module));
    for (std::string word; words >> word;)
        if (isdigit((unsigned char)word[0])) return atoi(word.c_str());
    return 0;
}

inline std::string driver_name() {
#if defined(DEVICE_CUDA)
    int runtime = 0;
    check_cuda(cudaRuntimeGetVersion(&runtime), "CUDA's version");
    return text("driver %d, CUDA %d", driver_version(), runtime);
#else
    return "no driver";
#endif
}

// 90 for sm_90; builds that run without a GPU count as sm_90
inline int compute_capability() {
#if defined(DEVICE_CUDA)
    return device_properties().major * 10 + device_properties().minor;
#else
    return 90;
#endif
}

// whether the device has fp8 GEMMs; true in builds without a GPU, which compute them in plain loops
inline bool device_has_fp8() { return compute_capability() >= 89; }
// whether it has TMA and wgmma
inline bool device_is_hopper() { return compute_capability() / 10 == 9; }

// ---- this machine -----------------------------------------------------------------------------------------

// devices of this machine, at least 1: without a GPU, the CPU counts as one
inline int device_count() {
    int count = 1;
#if defined(DEVICE_CUDA)
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 1) count = 1;
#endif
    return count;
}

// tells this rank's GPU from the others on its host; 0 without a GPU
inline int64_t device_id() {
#if defined(DEVICE_CUDA)
    int64_t halves[2];
    static_assert(sizeof halves == sizeof device_properties().uuid);
    memcpy(halves, &device_properties().uuid, sizeof halves);
    return halves[0] ^ halves[1];
#else
    return 0;
#endif
}

// the number in a file; SIZE_MAX if there is none, as in cgroups without a limit ("max")
inline size_t number_in_file(const char* path) {
    unsigned long long number = SIZE_MAX;
    FILE* file = fopen(path, "r");
    if (file && fscanf(file, "%llu", &number) != 1) number = SIZE_MAX;
    if (file) fclose(file);
    return (size_t)number;
}

// what a container or a batch system leaves (cgroups of version 2, then 1)
inline size_t free_in_cgroup() {
    for (auto [limit, used] : {std::pair{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
                               {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
        size_t most = number_in_file(limit), now = number_in_file(used);
        if (most < SIZE_MAX / 4 && now < SIZE_MAX) return most > now ? most - now : 0;
    }
    return SIZE_MAX;
}

// what `ulimit -v` leaves, less what a BLAS takes for its threads
inline size_t free_address_space() {
    struct rlimit most;
    if (getrlimit(RLIMIT_AS, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    size_t taken = number_in_file("/proc/self/statm") * (size_t)sysconf(_SC_PAGESIZE);
    size_t blas = ((size_t)omp_get_max_threads() + 1) * (64 << 20);
    return most.rlim_cur > taken + blas ? most.rlim_cur - taken - blas : 0;
}

// bytes of the device's memory that are free
inline size_t free_memory() {
#if defined(DEVICE_CUDA)
    size_t available = 0, whole = 0;
    check_cuda(cudaMemGetInfo(&available, &whole), "asking for free memory");
    return available;
#else
    char line[128];
    unsigned long kilobytes = 0;
    FILE* file = fopen("/proc/meminfo", "r");

    while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %lu", &kilobytes) != 1) {}
    if (file) fclose(file);
    if (!kilobytes) fail("free memory is not known here (/proc/meminfo): give --micro-batch a number");
    return std::min((size_t)kilobytes * 1024, free_in_cgroup());
#endif
}

// ---- the device of this thread ---------------------------------------------------------------------------

#if defined(DEVICE_CUDA)  // the others: emulator/streams_on_cpu.h, emulator/no_device.h
inline void let_device_go_on() {}  // nothing to do: a real one runs by itself
inline void note_progress() {}

// selects the device that this thread works on; several ranks may share one
inline void use_device(int local_rank) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
        check_cuda(cudaSetDevice(local_rank % devices), "choosing a device");
}
#endif
