"""CUDA's functions and types compute what CUDA's documentation says."""

import numpy as np
import pytest

LANE = np.arange(32)


def compute(cuda, expression, dtype="int32", block=32, setup="", inputs=()):
    """The value of a CUDA expression in each thread of a block, where `lane` is the thread's number."""
    ctype = {"int32": "int", "uint32": "unsigned", "float32": "float", "uint64": "unsigned long long"}
    ctype |= {"float16": "half", "uint16": "unsigned short", "int64": "long long"}
    parameters = "".join(f", {ctype[str(a.dtype)]}* in{i}" for i, a in enumerate(inputs))
    out = np.zeros(block, dtype)
    source = f"""
    #include <cuda_fp16.h>
    __global__ void kernel({ctype[dtype]}* out{parameters}) {{
      int lane = threadIdx.x;
      {setup}
      out[lane] = {expression};
    }}"""
    cuda.run_kernel(source, "kernel", 1, block, [out, *inputs])
    return out


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("__shfl_sync(0xffffffff, lane * 2, 5)", np.full(32, 10)),
        ("__shfl_sync(0xffffffff, lane, lane + 1)", (LANE + 1) % 32),
        ("__shfl_sync(0xffffffff, lane, 3, 8)", LANE // 8 * 8 + 3),
        ("__shfl_up_sync(0xffffffff, lane, 2)", np.where(LANE < 2, LANE, LANE - 2)),
        ("__shfl_up_sync(0xffffffff, lane, 1, 16)", np.where(LANE % 16 == 0, LANE, LANE - 1)),
        ("__shfl_down_sync(0xffffffff, lane, 4)", np.where(LANE > 27, LANE, LANE + 4)),
        ("__shfl_down_sync(0xffffffff, lane, 3, 4)", np.where(LANE % 4 > 0, LANE, LANE + 3)),
        ("__shfl_xor_sync(0xffffffff, lane, 5)", LANE ^ 5),
        ("__shfl_xor_sync(0xffffffff, lane, 8, 8)", np.where(LANE ^ 8 < LANE, LANE ^ 8, LANE)),
        ("__ballot_sync(0xffffffff, lane < 3)", np.full(32, 7)),
        ("__any_sync(0xffffffff, lane == 9)", np.full(32, 1)),
        ("__any_sync(0xffffffff, lane > 31)", np.full(32, 0)),
        ("__all_sync(0xffffffff, lane < 32)", np.full(32, 1)),
        ("__all_sync(0xffffffff, lane)", np.full(32, 0)),
        (
            "lane < 8 ? __ballot_sync(0xff, lane & 1) : __ballot_sync(0xffffff00, 1) >> 8",
            np.where(LANE < 8, 0xAA, 0xFFFFFF),
        ),
        ("lane < 8 ? __activemask() : 0", np.where(LANE < 8, 0xFF, 0)),
    ],
)
def test_warp_functions(emulated_cuda, expression, expected):
    np.testing.assert_array_equal(compute(emulated_cuda, expression), expected)


def test_sum_in_a_block_that_is_no_multiple_of_a_warp(emulated_cuda):
    setup = "int sum = lane;\nfor (int i = 16; i; i >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, i);"
    assert compute(emulated_cuda, "sum", block=40, setup=setup)[0] == 496


def test_wide_shuffle(emulated_cuda):
    out = compute(emulated_cuda, "__shfl_down_sync(0xffffffff, (1ull << 40) + lane, 1)", "uint64")
    np.testing.assert_array_equal(out[:31], (1 << 40) + np.arange(1, 32))


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("__popc(0xf0f)", 8),
        ("__popcll(0xffffffffffll)", 40),
        ("__byte_perm(0x33221100, 0x77665544, 0x7502)", 0x77550022),
        ("__ffs(8)", 4),
        ("__ffs(0)", 0),
        ("__ffsll(1ll << 40)", 41),
        ("__clz(1)", 31),
        ("__clz(0)", 32),
        ("__clzll(1)", 63),
        ("__brev(1) == 0x80000000u", 1),
        ("__mulhi(1 << 30, 8)", 2),
        ("__dp4a(0x01ff0203, 0x01010101, 10)", 15),
        ("__float_as_int(1.0f) == 0x3f800000", 1),
        ("__int_as_float(0x40000000)", 2),
        ("min(3, -2) + max(1u, 4u)", 2),
        ("max(NAN, 3.0f)", 3),
        ("__fdividef(9, 3) + rsqrtf(0.25f) + __fmaf_rn(2, 3, 4)", 15),
        ("__float2int_rn(2.5f)", 2),
        ("(int)sizeof(float3) + (int)alignof(float4) * 100 + (int)sizeof(longlong2) * 10000", 161612),
        ("make_float4(1, 2, 3, 4).z + make_int2(5, 6).y + make_uchar4(1, 2, 3, 4).w", 13),
    ],
)
def test_functions_of_a_thread(emulated_cuda, expression, expected):
    assert compute(emulated_cuda, expression, block=1)[0] == expected


@pytest.mark.parametrize(
    "call, start, end",
    [
        ("atomicAdd({}, lane)", 1, 497),
        ("atomicMin({}, lane)", 7, 0),
        ("atomicMax({}, lane)", 7, 31),
        ("atomicOr({}, 1 << lane % 4)", 16, 31),
        ("atomicAnd({}, ~(1 << lane % 4))", 31, 16),
        ("atomicXor({}, 1 << lane % 4)", 1, 1),
        ("atomicExch({}, 5)", 1, 5),
        ("atomicCAS({}, 1, lane + 2)", 1, 2),
    ],
)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint64"])
def test_atomics(emulated_cuda, call, start, end, dtype):
    emulated_cuda.sanitize = "thread"
    cell = np.full(1, start, dtype)
    old = compute(emulated_cuda, call.format("in0"), dtype, inputs=[cell])
    assert (cell[0], old[0]) == (end, start)


def test_atomic_add_of_floats(emulated_cuda):
    cell = np.zeros(1, "float32")
    compute(emulated_cuda, "atomicAdd(in0, 0.5f)", "float32", inputs=[cell])
    assert cell[0] == 16


def test_atomic_that_cuda_lacks_does_not_compile(emulated_cuda):
    with pytest.raises(RuntimeError, match="CUDA has no atomicAdd of this type"):
        compute(emulated_cuda, "atomicAdd(in0, 1)", "int64", inputs=[np.zeros(1, "int64")])


@pytest.mark.parametrize("operator", "+-*/")
def test_half_arithmetic(emulated_cuda, operator):
    a, b = np.random.default_rng(0).standard_normal((2, 1024)).astype("float16") * np.float16(100)
    out = compute(emulated_cuda, f"in0[lane] {operator} in1[lane]", "float16", 1024, inputs=[a, b])
    np.testing.assert_array_equal(out, eval(f"a {operator} b"))


def test_half_of_every_float(emulated_cuda):
    """Around each half, and half way to the next: normal, subnormal, overflowing and not finite."""
    halves = np.arange(65536, dtype="uint16").view("float16").astype("float32")
    with np.errstate(all="ignore"):
        between = (halves + np.roll(halves, -1)) / 2
        floats = np.stack(
            [halves, between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf)]
        ).ravel()
        floats = np.concatenate([floats, np.float32([65519.9, 65520, 1e30, 1e-8, 2.9e-8, 3e-8, 1e-40])])
        expected = floats.astype("float16")
    out = np.zeros(floats.size, "float16")
    back = np.zeros(floats.size, "float32")
    source = """
    __global__ void kernel(const float* in, half* out, float* back, int n) {
      int i = blockIdx.x * 1024 + threadIdx.x;
      if (i < n) { out[i] = __float2half_rn(in[i]); back[i] = __half2float(out[i]); }
    }"""
    blocks = -(-floats.size // 1024)
    emulated_cuda.run_kernel(source, "kernel", blocks, 1024, [floats, out, back, floats.size])
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(back, expected.astype("float32"))


def test_bfloat16_rounds_to_nearest_even(emulated_cuda):
    floats = np.float32([1, 1.00390625, 1.01171875, 3.4e38, np.inf, -2.5, 1e-40])
    expression = "__bfloat162float(__float2bfloat16_rn(in0[lane]))"
    out = compute(emulated_cuda, expression, "float32", floats.size, inputs=[floats])
    bits = floats.view("uint32").astype("uint64")
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("uint32").view("float32")
    np.testing.assert_array_equal(out, expected)


def test_half2(emulated_cuda):
    setup = "half2 x = __hadd2(__floats2half2_rn(1, 2), __hmul2(make_half2(3, 4), __half2half2(half(lane))));"
    out = compute(emulated_cuda, "__low2float(x) * 1000 + __high2float(x)", "float32", setup=setup)
    np.testing.assert_array_equal(out, (1 + 3 * LANE) * 1000 + 2 + 4 * LANE)


def test_half_comparisons_and_conversions(emulated_cuda):
    setup = "half a = lane, b = 3.5f;"
    out = compute(
        emulated_cuda, "(a < b) + __hgt(a, b) * 2 + (int)(a * b) * 4 + (a == half(4)) * 1000", setup=setup
    )
    expected = (LANE < 3.5) + (LANE > 3.5) * 2 + (LANE * 3.5).astype("int") * 4 + (LANE == 4) * 1000
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_tensor_cores(emulated_cuda, sanitize):
    source = """
    #include <mma.h>
    using namespace nvcuda;
    __global__ void kernel(const half* a, const half* b, float* c) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
      wmma::fill_fragment(z, 0.0f);
      for (int k = 0; k < 2; ++k) {
        wmma::load_matrix_sync(x[k], a + threadIdx.y * 16 * 32 + k * 16, 32);
        wmma::load_matrix_sync(y, b + k * 16, 32);
        wmma::mma_sync(z, x[k], y, z);
      }
      wmma::store_matrix_sync(c + threadIdx.y * 16 * 16, z, 16, wmma::mem_row_major);
    }"""
    a = np.random.default_rng(0).standard_normal((32, 32)).astype("float16")
    b = np.random.default_rng(1).standard_normal((16, 32)).astype("float16")
    c = np.zeros((32, 16), "float32")
    emulated_cuda.sanitize = sanitize
    emulated_cuda.run_kernel(source, "kernel", 1, (32, 2), [a, b, c])
    np.testing.assert_allclose(c, a.astype("float32") @ b.astype("float32").T, rtol=1e-4, atol=1e-5)
