"""Convolutions and products of int8 on x86 without VNNI, where TVM saturates the sums of two products.

It uses `vpmaddubsw`, which adds two products of uint8 and int8 in 16 bits: 255 * 127 * 2 becomes 32767.
Importing this module takes the uppermost bits of the data apart from the others. 127 and 128 times an int8,
twice, are in the range of 16 bits, so both sums are exact, and they are added in 32 bits. TVM's own is exact
where there is VNNI.

Such a convolution reads channels by four, and gives them by 16. TVM pads those of others with zeros, but not
where the convolution is dilated, which did not compile. Here, it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relay, te, tir, topi
from tvm.target.x86 import get_simd_32bit_lanes
from tvm.topi.x86 import conv2d_alter_op, is_int8_hw_support, tensor_intrin

BYTES = 4  # of one sum
FILTERS = 16  # at once
UPPERMOST = -0x7F7F7F80  # bits of four bytes, as an int32
OTHERS = 0x7F7F7F7F
ADDED_PRODUCTS = {  # {sums at once: LLVM's names of vpmaddubsw and vpmaddwd}
    4: ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}


def exact_sums_of_four() -> tir.TensorIntrin:
    """Sums of four products, of the same four numbers of uint8 with those of each row of int8."""
    lanes = get_simd_32bit_lanes()
    data = te.placeholder((BYTES,), "uint8", "data")
    rows = te.placeholder((lanes, BYTES), "int8", "rows")
    k = te.reduce_axis((0, BYTES), "k")
    sums = te.compute(
        (lanes,), lambda i: te.sum(data[k].astype("int32") * rows[i, k].astype("int32"), axis=k), "sums"
    )
    strides = {data: [1], rows: [te.var("stride"), 1]}
    buffers = {
        each: tir.decl_buffer(each.shape, each.dtype, each.op.name, offset_factor=1, strides=strides[each])
        for each in (data, rows)
    }

    def emitted(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tuple[tir.Stmt, tir.Stmt, tir.Stmt]:
        (numbers, weights), (result,), type_ = ins, outs, f"int32x{lanes}"
        added = _sums(numbers, weights, lanes)
        return (  # at once, the start of many, and the next of them
            result.vstore(0, added),
            result.vstore(0, tir.const(0, type_)),
            result.vstore(0, added + result.vload([0], type_)),
        )

    return te.decl_tensor_intrin(sums.op, emitted, binds=buffers, default_buffer_params={"offset_factor": 1})


def _sums(data: tir.Buffer, rows: tir.Buffer, lanes: int) -> tir.PrimExpr:
    bytes_, pairs, fours = f"int8x{BYTES * lanes}", f"int16x{2 * lanes}", f"int32x{lanes}"
    of_bytes, of_pairs = ADDED_PRODUCTS[lanes]
    four = tir.reinterpret("int32", data.vload([0], f"uint8x{BYTES}"))
    weights, ones = rows.vload([0, 0], bytes_), tir.const(1, pairs)

    def added(bits: int) -> tir.PrimExpr:
        numbers = tir.reinterpret(bytes_, tir.Broadcast(four & tir.const(bits, "int32"), lanes))
        two = tir.call_llvm_pure_intrin(pairs, of_bytes, tir.const(2, "uint32"), numbers, weights)
        return tir.call_llvm_pure_intrin(fours, of_pairs, tir.const(2, "uint32"), two, ones)

    return added(UPPERMOST) + added(OTHERS)


def _dilated(attrs: Any, inputs: Sequence[relay.Expr], types: Sequence[relay.Type]) -> relay.Expr | None:
    """A dilated convolution of padded channels and filters, of which the filters are cut off again."""
    if not (_is_dilated(attrs) and is_int8_hw_support(*(each.dtype for each in types[:2]))):
        return _stock(attrs, inputs, types)
    filters, channels = (int(extent) for extent in types[1].shape[:2])
    more, behind = -filters % FILTERS, -channels % BYTES
    if not more and not behind:
        return _stock(attrs, inputs, types)
    data, weights = inputs
    padded = (
        relay.nn.pad(data, ((0, 0), (0, behind), (0, 0), (0, 0))),
        relay.nn.pad(weights, ((0, more), (0, behind), (0, 0), (0, 0))),
    )
    values = {key: attrs[key] for key in attrs.keys()} | {"channels": filters + more}  # noqa: SIM118
    result = relay.nn.conv2d(*padded, **values)
    return relay.strided_slice(result, [0], [filters], axes=[1]) if more else result


def _is_dilated(attrs: Any) -> bool:
    layouts = str(attrs.data_layout), str(attrs.kernel_layout)
    return max(map(int, attrs.dilation)) > 1 and int(attrs.groups) == 1 and layouts == ("NCHW", "OIHW")


_stock = conv2d_alter_op._conv2d_legalize
topi.nn.conv2d_legalize.register(["cpu"], override=True)(_dilated)
tensor_intrin.dot_16x1x16_uint8_int8_int32_skylake = exact_sums_of_four
