// host_blas.h   what ref::gemm calls: CBLAS's own interface, declared here so that a CUDA build compiles
//   without its header, and GEMMs of bf16 numbers, which CBLAS does not have
#pragma once

extern "C" {
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc);
void cblas_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double* a, int lda,
                 const double* b, int ldb, double beta, double* c, int ldc);
}

constexpr int cblas_row_major = 101, cblas_as_is = 111;  // 112: transposed

// out (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * out + bias (n), summed in fp32; all row-major, ld
// elements a row. a, b and bias are bf16, out is bf16 or fp32; with a bias alpha is 1 and beta 0
struct Bf16Gemm {
    void* out;
    const void *a, *b, *bias;  // bias: or nullptr
    int m, n, k;
    bool transpose_a, transpose_b, out_is_fp32;
    long lda, ldb, ldc;
    float alpha, beta;
};
// By oneDNN, if it is linked (bf16_onednn.cpp) and the processor has bf16 instructions. If oneDNN has no fast
// GEMM for this shape, or is not linked (bf16_widened.cpp), does nothing and returns false
bool multiply_bf16(const Bf16Gemm&);
bool has_bf16_gemm();  // whether multiply_bf16 can return true
