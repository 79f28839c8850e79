// kernels.cu   where all kernels are compiled, and the operations' gpu() with them: a layer with kernels is
//   included here. Other files see operations only, and are compiled by the host's compiler.
#define WITH_KERNELS
#include "attention.cuh"
#include "cross_entropy.cuh"
#include "embedding.cuh"
#include "fast/flash_dispatch.cuh"
#include "fast/fp8_linear.cuh"
#include "fast/packed_attention_hopper.cuh"
#include "layernorm.cuh"
#include "linear.cuh"
#include "run/packed_state.cuh"
#include "run/sum_bits.cuh"

#if KERNELS_HERE
// the optimizer's, for each form of its state
template void AdamW<AdamWState<real, true>>::gpu(Stream) const;
template void AdamW<AdamWState<real, false>>::gpu(Stream) const;
template void AdamW<AdamWState<bf16, true>>::gpu(Stream) const;
template void AdamW<AdamWState<bf16, false>>::gpu(Stream) const;
template void gpu::unpack_state(real*, const AdamWState<real, true>&, StateKind, long, Stream);
template void gpu::unpack_state(real*, const AdamWState<real, false>&, StateKind, long, Stream);
template void gpu::unpack_state(real*, const AdamWState<bf16, true>&, StateKind, long, Stream);
template void gpu::unpack_state(real*, const AdamWState<bf16, false>&, StateKind, long, Stream);
template void gpu::pack_state(const AdamWState<real, true>&, StateKind, const real*, long, Stream);
template void gpu::pack_state(const AdamWState<real, false>&, StateKind, const real*, long, Stream);
template void gpu::pack_state(const AdamWState<bf16, true>&, StateKind, const real*, long, Stream);
template void gpu::pack_state(const AdamWState<bf16, false>&, StateKind, const real*, long, Stream);
template void SumBits<bf16>::gpu(Stream) const;
template void SumBits<float>::gpu(Stream) const;
#endif
