// plain_blas.cpp   the two CBLAS functions that gemm.h calls, as plain loops: for a machine without a BLAS
//   g++ -O3 -fopenmp -c -o build/plain_blas.o layers/base/plain_blas.cpp && make BLAS=build/plain_blas.o
//   Slow, but good enough to check kernels against (scripts/first_contact.sh). Row-major only.

namespace {

constexpr int transposed = 112;

template <class Real>
struct Matrix {
    Real* x;
    long ld;
    bool is_transposed = false;
};

// c (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * c
template <class Real>
void multiply(int m, int n, int k, Real alpha, Matrix<const Real> a, Matrix<const Real> b, Real beta,
              Matrix<Real> c) {
    #pragma omp parallel for
    for (int row = 0; row < m; row++) {
        Real* out = c.x + row * c.ld;
        for (int column = 0; column < n; column++) out[column] = beta == 0 ? 0 : beta * out[column];
        for (int i = 0; i < k; i++) {
            Real left = alpha * (a.is_transposed ? a.x[i * a.ld + row] : a.x[row * a.ld + i]);
            if (b.is_transposed)
                for (int column = 0; column < n; column++) out[column] += left * b.x[column * b.ld + i];
            else
                for (int column = 0; column < n; column++) out[column] += left * b.x[i * b.ld + column];
        }
    }
}

}  // namespace

extern "C" {
void cblas_sgemm(int, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc) {
    multiply<float>(m, n, k, alpha, {a, lda, ta == transposed}, {b, ldb, tb == transposed}, beta, {c, ldc});
}
void cblas_dgemm(int, int ta, int tb, int m, int n, int k, double alpha, const double* a, int lda,
                 const double* b, int ldb, double beta, double* c, int ldc) {
    multiply<double>(m, n, k, alpha, {a, lda, ta == transposed}, {b, ldb, tb == transposed}, beta, {c, ldc});
}
}
