// CUDA's warp matrix functions (tensor cores). The first lane of a warp holds the whole of each matrix and
// does the work; the other lanes only have to arrive. How a GPU spreads a matrix over lanes is unspecified.
#pragma once

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static constexpr int rows = std::is_same<Use, matrix_b>::value ? K : M;
  static constexpr int columns = std::is_same<Use, matrix_a>::value ? K : N;
  static constexpr int num_elements = rows * columns;
  T x[num_elements];
};

inline bool first_lane_of_all(int line) {
  emulator::emulator_warp(emulator::Wait::syncwarp, ~0u, 0, 0, line);
  return emulated_lane() == 0;
}

template <class Fragment, class T>
void copy_in(Fragment& to, const T* from, unsigned stride, bool by_row) {
  for (int i = 0; i < to.rows; ++i) {
    for (int j = 0; j < to.columns; ++j)
      to.x[i * to.columns + j] = from[by_row ? i * stride + j : j * stride + i];
  }
}

template <class Use, int M, int N, int K, class T, class Layout, class Memory>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& to, const Memory* from, unsigned stride) {
  if (first_lane_of_all(__LINE__)) copy_in(to, from, stride, std::is_same<Layout, row_major>::value);
  first_lane_of_all(__LINE__);
}

template <int M, int N, int K, class T, class Memory>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& to, const Memory* from, unsigned stride,
                      layout_t layout) {
  if (first_lane_of_all(__LINE__)) copy_in(to, from, stride, layout == mem_row_major);
  first_lane_of_all(__LINE__);
}

template <int M, int N, int K, class T, class Memory>
void store_matrix_sync(Memory* to, const fragment<accumulator, M, N, K, T>& from, unsigned stride,
                       layout_t layout) {
  if (first_lane_of_all(__LINE__)) {
    for (int i = 0; i < M; ++i) {
      for (int j = 0; j < N; ++j)
        to[layout == mem_row_major ? i * stride + j : j * stride + i] = from.x[i * N + j];
    }
  }
  first_lane_of_all(__LINE__);
}

template <class Use, int M, int N, int K, class T, class Layout, class Value>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& to, Value value) {
  for (T& x : to.x) x = value;
}

template <int M, int N, int K, class D, class A, class LayoutA, class B, class LayoutB, class C>
void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, A, LayoutA>& a,
              const fragment<matrix_b, M, N, K, B, LayoutB>& b, const fragment<accumulator, M, N, K, C>& c) {
  typedef typename std::conditional<std::is_integral<C>::value, int, float>::type Sum;
  if (!first_lane_of_all(__LINE__)) return;
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      Sum sum = c.x[i * N + j];
      for (int k = 0; k < K; ++k) sum += Sum(a.x[i * K + k]) * Sum(b.x[k * N + j]);
      d.x[i * N + j] = sum;
    }
  }
}

}  // namespace wmma
}  // namespace nvcuda
