// bf16_widened.cpp   host_blas.h's GEMM of bf16 numbers where oneDNN is not linked: there is none, and gemm.h
//   converts its operands to fp32 for CBLAS
#include "host_blas.h"

bool has_bf16_gemm() { return false; }
bool multiply_bf16(const Bf16Gemm&) { return false; }
