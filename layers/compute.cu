// compute.cu   where the operations' ref() or gpu() is compiled: every layer's file is included here. Other
//   files see operations only, and are compiled by the host's compiler.
#define COMPUTES_HERE
#include "attention.cuh"
#include "cross_entropy.cuh"
#include "embedding.cuh"
#include "fast/cublaslt.h"
#include "fast/flash_dispatch.cuh"
#include "fast/fp8_linear.cuh"
#include "fast/host_gemm.h"
#include "fast/packed_attention.cuh"
#include "fast/tokens_ahead.cuh"
#include "layernorm.cuh"
#include "linear.cuh"
#include "run/packed_state.cuh"
#include "run/sum_bits.cuh"

// templates, for each type of values, and each form of the optimizer's state
template struct SumBits<bf16>;
template struct SumBits<real>;
template struct AdamW<AdamWState<real, true>>;
template struct AdamW<AdamWState<real, false>>;
template struct AdamW<AdamWState<bf16, true>>;
template struct AdamW<AdamWState<bf16, false>>;
template struct CopyState<AdamWState<real, true>>;
template struct CopyState<AdamWState<real, false>>;
template struct CopyState<AdamWState<bf16, true>>;
template struct CopyState<AdamWState<bf16, false>>;
