// Instructions of tensor cores that CUDA offers as PTX only, with the layout over lanes that PTX specifies.
//
// Operands in shared memory are read by the thread that needs them, so that bounds and races are checked.
#pragma once

// ldmatrix: lane 8i + r holds the address of row r of matrix i; each lane gets two values of each matrix.
template <int kCount>
void emulated_ldmatrix(unsigned* out, const void* row) {
  int lane = emulated_lane();
  for (int i = 0; i < kCount; ++i) {
    uint64_t from = emulated_shuffle(~0u, reinterpret_cast<uint64_t>(row), 8 * i + lane / 4, __LINE__);
    out[i] = reinterpret_cast<const unsigned*>(from)[lane % 4];
  }
}

// ldmatrix.trans of four matrices: each lane gets two values of a column.
inline void emulated_ldmatrix_trans(unsigned* out, const void* row) {
  int lane = emulated_lane();
  for (int i = 0; i < 4; ++i) {
    out[i] = 0;
    for (int k = 0; k < 2; ++k) {
      int of_row = 8 * i + lane % 4 * 2 + k;
      uint64_t from = emulated_shuffle(~0u, reinterpret_cast<uint64_t>(row), of_row, __LINE__);
      out[i] |= unsigned(reinterpret_cast<const uint16_t*>(from)[lane / 4]) << 16 * k;
    }
  }
}

// What the lanes of each warp show each other.
struct emulated_operands {
  unsigned a[4], b[2];
};
inline emulated_operands emulated_board[32][warpSize];

// A value of a word, as the type of the sums.
template <class T, class S>
EMULATED_UNCHECKED S emulated_factor(unsigned word, int byte) {
  T value;
  memcpy(&value, reinterpret_cast<const char*>(&word) + byte, sizeof value);
  return static_cast<S>(value);
}

template <class T, class S>
EMULATED_UNCHECKED S emulated_dot(const emulated_operands* board, int row, int column) {
  S sum = 0;
  for (int at = 0; at < 32; at += sizeof(T)) {  // bytes along the reduction: two pieces of 16
    const emulated_operands& of_row = board[row % 8 * 4 + at % 16 / 4];
    const emulated_operands& of_column = board[column * 4 + at % 16 / 4];
    unsigned a = of_row.a[at / 16 * 2 + row / 8], b = of_column.b[at / 16];
    sum += emulated_factor<T, S>(a, at % 4) * emulated_factor<T, S>(b, at % 4);
  }
  return sum;
}

// mma.sync.m16n8k16 of 16 bits, or m16n8k32 of 8 bits, row by column
template <class T, class S>
EMULATED_UNCHECKED void emulated_mma(S* sums, const unsigned* a, const unsigned* b) {
  int lane = emulated_lane(), thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  emulated_operands* board = emulated_board[thread / warpSize];
  memcpy(board[lane].a, a, sizeof board->a);
  memcpy(board[lane].b, b, sizeof board->b);
  emulator::emulator_warp(emulator::Wait::syncwarp, ~0u, 0, 0, __LINE__);
  for (int i = 0; i < 4; ++i) sums[i] += emulated_dot<T, S>(board, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
  emulator::emulator_warp(emulator::Wait::syncwarp, ~0u, 0, 0, __LINE__);
}

// wgmma.mma_async.m64nNk16, or k32 of 8 bits, of operands in rows of so many pieces of 16 bytes: one, or more that are swizzled,
// by their addresses in shared memory. It is done at once, each thread computing its own sums; whether one waits for it as a
// GPU needs it is not checked.
template <class T, class S>
inline S emulated_operand(const void* from, int step, int rows, int row, int k, int pieces) {
  int byte = k * sizeof(T);
  const char* at = static_cast<const char*>(from) + row / 8 * rows + row % 8 * 16 * pieces;
  at += pieces == 1 ? byte / 16 * step + byte % 16 : byte;
  uintptr_t swizzled = reinterpret_cast<uintptr_t>(at);
  swizzled ^= (swizzled >> 7 & (pieces - 1)) << 4;
  return static_cast<S>(*reinterpret_cast<const T*>(swizzled));
}
template <class T, int N, class S>
void emulated_wgmma(S* sums, const void* a, int a_step, int a_rows, const void* b, int b_step, int b_rows,
                    int keep, int pieces) {
  int lane = emulated_lane(), warp = threadIdx.x / warpSize % 4;
  emulator::emulator_warp(emulator::Wait::syncwarp, ~0u, 0, 0, __LINE__);
  for (int h = 0; h < 2; ++h) {
    constexpr int kValues = 32 / sizeof(T);
    S own[kValues];
    for (int k = 0; k < kValues; ++k)
      own[k] = emulated_operand<T, S>(a, a_step, a_rows, warp * 16 + h * 8 + lane / 4, k, pieces);
    for (int j = 0; j < N / 4; ++j) {
      S& sum = sums[j / 2 * 4 + h * 2 + j % 2];
      if (!keep) sum = 0;
      for (int k = 0; k < kValues; ++k)
        sum += own[k] * emulated_operand<T, S>(b, b_step, b_rows, j / 2 * 8 + lane % 4 * 2 + j % 2, k, pieces);
    }
  }
}
