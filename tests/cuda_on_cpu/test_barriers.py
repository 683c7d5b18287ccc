"""What hangs a GPU, or gives junk there, is reported: divergence, endless loops, impossible launches."""

import importlib

import numpy as np
import pytest

from topi_ext.corrections.sort import stock_sort_by_key_ir, stock_sort_ir

import tvm
from tvm import relay


def run(cuda, body, grid=1, block=64, parameters="int* out", source="", **kwargs):
    out = np.zeros(1024, "int32")
    cuda.run_kernel(
        f'{source}\nextern "C" __global__ void kernel({parameters}) {{\n{body}\n}}',
        "kernel",
        grid,
        block,
        [out],
        **kwargs,
    )
    return out


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_stock_argsort_has_a_divergent_barrier(emulated_cuda, monkeypatch, executor):
    sort = importlib.import_module("tvm.topi.cuda.sort")
    monkeypatch.setattr(sort, "sort_ir", stock_sort_ir)
    monkeypatch.setattr(sort, "sort_by_key_ir", stock_sort_by_key_ir)
    x = relay.var("x", shape=(200,))
    with pytest.raises(tvm.TVMError, match=r"divergent barrier in kernel \w*argsort.*hand_threaded"):
        data = np.random.default_rng(0).random(200, dtype="float32")
        emulated_cuda.run_relay(relay.Function([x], relay.argsort(x)), data, executor=executor)


def test_argsort_sorts(emulated_cuda):
    x = relay.var("x", shape=(20000,))
    data = np.random.default_rng(0).random(20000, dtype="float32")
    (order,) = emulated_cuda.run_relay(relay.Function([x], relay.argsort(x)), data)
    np.testing.assert_array_equal(order, np.argsort(data, kind="stable"))


def test_thread_that_ends_before_a_barrier(emulated_cuda):
    expected = (
        r"divergent barrier in kernel kernel, block \(1,0,0\), at barrier 0 of the block: "
        r"threads 0-39 wait at __syncthreads of line 3; threads 40-63 ended"
    )
    with pytest.raises(tvm.TVMError, match=expected):
        run(emulated_cuda, "if (blockIdx.x == 0 || threadIdx.x < 40) __syncthreads();", grid=2)


def test_threads_at_different_barriers(emulated_cuda):
    with pytest.raises(
        tvm.TVMError, match=r"at barrier 1 .* 0 wait at .* line 4; threads 1-63 wait .* line 5"
    ):
        run(emulated_cuda, "__syncthreads();\nif (threadIdx.x < 1) __syncthreads();\nelse __syncthreads();")


def test_device_recovers_from_a_failure(emulated_cuda):
    with pytest.raises(tvm.TVMError):
        run(emulated_cuda, "if (threadIdx.x) __syncthreads();")
    assert run(emulated_cuda, "__syncthreads(); out[threadIdx.x] = threadIdx.x;")[63] == 63


@pytest.mark.parametrize(
    "call", ["__shfl_down_sync(0xffffffff, 1, 1)", "__ballot_sync(0xffffffff, 1)", "__syncwarp()"]
)
def test_lane_that_never_arrives(emulated_cuda, call):
    with pytest.raises(tvm.TVMError, match=r"divergent warp function .* threads 0-15 wait at .*0xffffffff"):
        run(emulated_cuda, f"if (threadIdx.x < 16) {call};")


def test_lane_outside_its_own_mask(emulated_cuda):
    with pytest.raises(tvm.TVMError, match="lane 1 calls a warp function of line 3 with mask 0x00000001"):
        run(emulated_cuda, "__any_sync(1u, 0);")


@pytest.mark.parametrize("loop", ["while (true) out[0] = 1;", "while (true) __syncthreads();"])
def test_endless_loop(emulated_cuda, loop):
    emulated_cuda.set_steps_per_thread(1_000_000)
    with pytest.raises(tvm.TVMError, match="not at its end after 1000000 steps"):
        run(emulated_cuda, loop)


@pytest.mark.parametrize(
    "grid, block, reason",
    [
        ((1, 65536), 1, "gridDim.y and gridDim.z end at 65535"),
        ((1, 1, 65536), 1, "gridDim.y and gridDim.z end at 65535"),
        (1, 1025, "at most 1024 threads"),
        (1, (64, 32), "at most 1024 threads"),
        (1, (1, 1, 65), "64 of them along z"),
        (0, 1, "without threads"),
    ],
)
def test_impossible_launch(emulated_cuda, grid, block, reason):
    with pytest.raises(tvm.TVMError, match=f"refuses to launch .*{reason}"):
        run(emulated_cuda, "", grid, block)


def test_launch_bounds(emulated_cuda):
    source = 'extern "C" __global__ void __launch_bounds__(32) kernel() {}'
    emulated_cuda.run_kernel(source, "kernel", 1, 32, [])
    with pytest.raises(tvm.TVMError, match=r"more threads than its __launch_bounds__\(32\)"):
        emulated_cuda.run_kernel(source, "kernel", 1, 64, [])


def test_too_much_shared_memory(emulated_cuda):
    with pytest.raises(tvm.TVMError, match='49156 bytes of static shared memory with "b"; a block has 49152'):
        run(emulated_cuda, "__shared__ int a[12288]; __shared__ int b; a[0] = b;")
    with pytest.raises(tvm.TVMError, match="dynamic shared memory; a block has 166912"):
        run(emulated_cuda, "", dynamic_shared=164 << 10)
    emulated_cuda.set_arch(90)
    run(emulated_cuda, "", dynamic_shared=164 << 10)


TEAMS = """
  __shared__ int s[64];
  int team = threadIdx.x / 32;
  s[threadIdx.x] = threadIdx.x;
  %s
  out[threadIdx.x] = s[threadIdx.x ^ 31];
  if (team == 1) emulator::emulator_named_barrier(team + 1, 32, __LINE__);  // the other team does not
"""


def test_named_barrier(emulated_cuda):
    emulated_cuda.sanitize = "thread"
    body = TEAMS % "emulator::emulator_named_barrier(team + 1, 32, __LINE__);"
    np.testing.assert_array_equal(run(emulated_cuda, body)[:64], np.arange(64) ^ 31)


def test_named_barrier_orders_its_team_only(emulated_cuda):
    emulated_cuda.sanitize = "thread"
    body = TEAMS.replace("s[threadIdx.x ^ 31]", "s[threadIdx.x ^ 63]")
    with pytest.raises(tvm.TVMError, match="race"):
        run(emulated_cuda, body % "emulator::emulator_named_barrier(team + 1, 32, __LINE__);")


def test_thread_that_misses_a_named_barrier(emulated_cuda):
    with pytest.raises(
        tvm.TVMError, match="threads 0-31 wait at a named barrier of line 3; threads 32-63 ended"
    ):
        run(emulated_cuda, "if (threadIdx.x < 32) emulator::emulator_named_barrier(1, 64, __LINE__);")


def test_barriers_that_count(emulated_cuda):
    out = run(
        emulated_cuda,
        """
        out[threadIdx.x] = __syncthreads_count(threadIdx.x < 5) * 100
                         + __syncthreads_and(threadIdx.x < 64) * 10 + __syncthreads_or(threadIdx.x > 63);
        """,
    )
    np.testing.assert_array_equal(out[:64], 510)
