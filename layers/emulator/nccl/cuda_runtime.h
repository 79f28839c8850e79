// cuda_runtime.h   what nccl.h and comm_nccl.cpp find by this name in the emulated build
#pragma once
#include "../streams_on_cpu.h"
