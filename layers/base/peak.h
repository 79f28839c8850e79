// peak.h   dense bf16 peak of the GPUs people train on, TFLOP/s, from NVIDIA's data sheets
//   MFU = FLOPs per token * tokens per second / peak, with 6 N + 6 L C T FLOPs per token: N parameters
//   without the position table, causal attention counted once.
#pragma once
#include "device.h"

struct Peak { const char* name; double tflops; };
constexpr Peak peaks[] = {
    {"B200", 2250},    {"GH200", 989},    {"H200", 989},     {"H100 PCIe", 756},
    {"H100 NVL", 835}, {"H100", 989},
    {"A100", 312},     {"L40S", 362},     {"A40", 150},      {"L4", 121},        {"RTX 5090", 209.5},
    {"RTX 5080", 112.6}, {"RTX 4090", 165.2}, {"RTX 4080", 97.5}, {"RTX 3090", 71},  {"RTX 3080", 59.5},
};

// the device's own name
inline std::string device_name() {
#if defined(__CUDACC__)
    static const std::string name = [] {
        cudaDeviceProp properties;
        check_cuda(cudaGetDeviceProperties(&properties, 0),
                   "no CUDA device can be used (build with make DEVICE=cpu to run without)");
        return std::string(properties.name);
    }();
    return name;
#else
    return DEVICE_NAME;
#endif
}

inline std::string driver_name() {
#if defined(__CUDACC__)
    int driver = 0, runtime = 0;
    check_cuda(cudaDriverGetVersion(&driver), "the driver's version");
    check_cuda(cudaRuntimeGetVersion(&runtime), "CUDA's version");
    return text("driver %d, CUDA %d", driver, runtime);
#else
    return "no driver";
#endif
}

// whether it multiplies 8-bit numbers; plain loops do
inline bool device_has_fp8() {
#if defined(__CUDACC__)
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, 0), "the device's properties");
    return properties.major * 10 + properties.minor >= 89;
#else
    return true;
#endif
}

// FLOP/s, or 0 where it is not known, as in other precisions than bf16
inline double device_peak(const std::string& name) {
    for (auto& p : peaks) {
        if (sizeof(floatX) != 2) return 0;
        size_t at = name.find(p.name);
        char next = at == name.npos || at + strlen(p.name) >= name.size() ? ' ' : name[at + strlen(p.name)];
        if (at != name.npos && !isdigit(next)) return p.tflops * 1e12;  // an RTX A4000 is no A40
    }
    return 0;
}
