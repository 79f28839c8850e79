// host_blas.h   CBLAS's own interface, declared here so that a CUDA build compiles without its header
#pragma once

extern "C" {
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc);
void cblas_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double* a, int lda,
                 const double* b, int ldb, double beta, double* c, int ldc);
}
constexpr int cblas_row_major = 101, cblas_as_is = 111;  // 112: transposed
