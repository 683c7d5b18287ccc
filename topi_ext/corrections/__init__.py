"""All corrections of TVM, made from outside: no installed file is changed.

Importing a module of this folder applies its correction. Their order does not matter: no two set the same
attribute of an operator, as `tests/test_corrections.py` makes sure, and one that wraps what another has set
imports that one.

Numbers, and what is outside of a tensor:

| module | what TVM does without it |
|---|---|
| `average_pooling` | on CPUs, sums small windows of float16 in float16 |
| `comparisons` | takes "not x > y" for "x <= y" where one of them is NaN |
| `extremes` | loses NaN, and a row of infinities to -3.4e38, at the index -1; on CPUs, has no vectors |
| `extremes_of_two` | loses NaN in a maximum or minimum of two tensors |
| `grid_sample` | computes places again for each channel, and reads what it converts NaN to |
| `in_bounds` | reads and writes wherever an index points, and what rows without elements do not have |
| `in_float32` | accumulates float16 sums in float16; on CPUs, convolves bits of bfloat16 |
| `integer_division` | ends the process where integers are divided by 0, or the least one by -1 |
| `kernels` | computes some operators wrongly or has no code for them, see below |
| `llvm` | on CPUs, finds NaN equal to all numbers; takes float16 of float64 from the wrong register |
| `max_pooling` | loses NaN, and a window of minus infinities to -3.4e38 |
| `nested_branches` | behind a branch within a branch, reads what it has freed |
| `overflow` | takes sums and products of integers not to overflow where more is computed from them |
| `products_of_bytes` | on x86 without VNNI, saturates sums of two products of int8 |
| `shuffles` | reads other elements where a `depth_to_space` or `space_to_depth` is reversed, on CPUs |

Shapes that are known only at run time, or have no elements:

| module | what TVM does without it |
|---|---|
| `range` | crashes on a fractional step, and gives an empty range a negative length |
| `reshape` | divides by 0 for a tensor without elements; reads beyond one with too few |
| `shape_functions` | where a shape is known only at run time, does not compile, or gives a wrong shape |
| `sizes_at_run_time` | on CPUs, does not compile convolutions of unknown sizes, nor products plus a tensor |
| `where` | gives a tensor without elements the length 1 |

What the passes of TVM do to layouts and types:

| module | what TVM does without it |
|---|---|
| `convert_layout` | stops at shuffles, PReLU, pooled regions; converts what then has no kernel |
| `layout_rules` | in another layout, computes reductions wrongly, and does not compile a `topk` |
| `layout_transform` | reads zeros where a blocked layout is undone and then padded |
| `mixed_precision` | has no rule for four operators in half precision |

Kernels that do not compile, or hang:

| module | what TVM does without it |
|---|---|
| `backend` | hangs, or does not compile, on today's CUDA; writes constants with seven digits |
| `bfloat16` | on CPUs, does not compile operators of bfloat16 |
| `concatenate` | on CPUs, does not compile some; runs what is fused with one on one core |
| `cuda_schedules` | leaves loops of `einsum`, and of what is fused behind a `batch_matmul`, without threads |
| `sort` | on CUDA, hangs in a sort, and fails above 65,535 rows; on CPUs, of few types, without vectors |

Kernels that are slow:

| module | what TVM does without it |
|---|---|
| `cuda_reductions` | reads one line of memory for each element of a mean over pixels in NHWC |
| `erf` | on CPUs, calls the C library for each element, at a tenth of the speed |
| `exp` | on CPUs, calls the C library for each element, at a sixth of the speed |
| `global_pooling` | on CUDA, sums float16 in float16, and takes two kernels |
| `injective` | on CUDA, moves int8 one byte at a time |
| `injective_on_cpus` | on CPUs, computes what is left of a row one by one, and transposes along rows |
| `pooling` | on CUDA, reads and writes two bytes at a time in NHWC of half precision |
| `pooling_on_cpus` | keeps results in memory for each element of a window; vectors are no powers of two |
| `reductions_on_cpus` | sums rows without vectors; over pixels in NHWC, goes through all for each channel |
| `scatter` | on CUDA, goes along the indices in a loop of one thread |
| `softmax` | on CUDA, takes four kernels, whose threads read whole rows; on CPUs, has no vectors |
| `transposes_on_cuda` | reads a line of memory for each element of what is transposed |

The compiler, which is slow or complains:

| module | what TVM does without it |
|---|---|
| `arrays` | reads an array at three times the cost |
| `compile_cuda` | compiles all CUDA kernels of a network on one core, every time |
| `hybrid_script` | makes Python warn at each constant: reads `ast.Constant` |
| `objects` | for each attribute of a graph, and each lookup in a dictionary, takes a detour through Python |
| `op_spans` | in its importers, raises an exception for each operator, which has no place in the source |
| `remembered_types` | takes half a millisecond to infer the type of a convolution, ten times what it needs |

The operators of `kernels`:

| operator | what TVM does | here |
|---|---|---|
| `cast` of integers to a type that does not hold them, and on | merges both | converts twice |
| `cast` of clipped floats to integers, and on | merges both, and so keeps fractions | converts twice |
| `clip` with `a_min > a_max` | gives `a_min` | `a_max`, as in NumPy, ONNX and PyTorch |
| `clip` and `nn.relu` of NaN | gives a bound | NaN, as they do |
| `erf` of float64 | is computed in float32 | by the C library or CUDA |
| `acos` ... `atanh` of float16 | has no code | in float32 |
| `nn.leaky_relu` of float16 | rounds the slope to float16 | in float32, as in PyTorch |
| `scatter_elements` with fewer indices than elements | misplaces them | at their own positions |
| `image.resize2d` behind a transpose | refuses what TVM makes its layout, as "WCHN" | any order |
| `image.resize2d` to nearest elements | takes them through float32, which cuts int32 | as they are |
| `power` of 2 and a bool | does not compile on CPUs | 2 or 1 |
| `reverse` of shuffled elements that are gathered | does not compile: an index exceeds int32 | is bounded |
| `negative` of the float 0 | gives 0 | -0, which changes the sign of a division by it |
| `trilu` with a `k` of int32 | reads an undefined variable if fused | `k` is read first |
"""

from . import (  # noqa: F401  each corrects as it is imported
    arrays,
    average_pooling,
    backend,
    bfloat16,
    comparisons,
    compile_cuda,
    concatenate,
    convert_layout,
    cuda_reductions,
    cuda_schedules,
    erf,
    exp,
    extremes,
    extremes_of_two,
    global_pooling,
    grid_sample,
    hybrid_script,
    in_bounds,
    in_float32,
    injective,
    injective_on_cpus,
    integer_division,
    kernels,
    layout_rules,
    layout_transform,
    llvm,
    max_pooling,
    mixed_precision,
    nested_branches,
    objects,
    op_spans,
    overflow,
    pooling,
    pooling_on_cpus,
    products_of_bytes,
    range,
    reductions_on_cpus,
    remembered_types,
    reshape,
    scatter,
    shape_functions,
    shuffles,
    sizes_at_run_time,
    softmax,
    sort,
    transposes_on_cuda,
    where,
)
