"""Operators that make fewer elements of many, or sort them."""

import numpy as np

from tests.relax.onnx_cases.case import IMAGE, INFINITE, LATEST, POSITIVE, ROWS, WHOLE, case

TIES = np.float32([[3, 1, 3, 0, 3], [1, 1, 2, 2, 0], [5, 4, 3, 2, 1]])
REDUCING = "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare"
REDUCTIONS = {
    **{
        f"{name}_{at}": case(name, POSITIVE, opsets=(13, 17), **attributes)
        for name in REDUCING
        for at, attributes in enumerate(({"axes": [-1, 1]}, {"axes": [2], "keepdims": 0}, {}))
    },
    **{
        f"{name}_as_input": case(name, POSITIVE, [-1, 1], known=[1], opsets=(18, LATEST), keepdims=0)
        for name in REDUCING
    },
    "ReduceSum": case("ReduceSum", IMAGE, [1, -2], known=[1], keepdims=0),
    "ReduceSum_all": case("ReduceSum", IMAGE),
    "ArgMax": case("ArgMax", TIES, axis=-1),
    "ArgMax_last": case("ArgMax", TIES, axis=-1, select_last_index=1),
    "ArgMin_last": case("ArgMin", TIES, axis=0, keepdims=0, select_last_index=1),
    "ArgMax_integers": case("ArgMax", WHOLE.astype("int32"), axis=1),
    "ArgMin_bytes": case("ArgMin", (WHOLE + 9).astype("uint8"), axis=1, select_last_index=1),
    **{
        f"{name}_integers": case(name, WHOLE, opsets=(13, 17), axes=[1])
        for name in ("ReduceL1", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare")
    },
    "ReduceSum_integers": case("ReduceSum", WHOLE.astype("int32"), [0], known=[1]),
    "ReduceLogSum": case("ReduceLogSum", POSITIVE, opsets=(13, 17), axes=[1]),
    "ReduceLogSumExp": case("ReduceLogSumExp", IMAGE * 100, opsets=(13, 17), axes=[1, 3], keepdims=0),
    "ReduceLogSumExp_infinite": case("ReduceLogSumExp", INFINITE[2:3], opsets=(13, 17)),
    "ArgMax_front": case("ArgMax", TIES, axis=0, keepdims=0),
    "ArgMin": case("ArgMin", TIES, axis=1, keepdims=0),
    "Softmax": case("Softmax", IMAGE, axis=1),
    "Softmax_last": case("Softmax", IMAGE * 50),
    "LogSoftmax": case("LogSoftmax", IMAGE, axis=2),
    "CumProd": case("CumProd", ROWS, np.int64(1), known=[1], opsets=(26, 26)),
    "CumProd_both": case("CumProd", WHOLE, np.int64(-2), known=[1], exclusive=1, reverse=1, opsets=(26, 26)),
    "Hardmax": case("Hardmax", TIES),
    "Hardmax_channels": case("Hardmax", IMAGE, axis=1),
    "CumSum": case("CumSum", ROWS, np.int64(1), known=[1], opsets=(14, LATEST)),
    "CumSum_integers": case("CumSum", WHOLE, np.int64(-2), known=[1], opsets=(14, LATEST)),
    "TopK": case("TopK", TIES, [3], known=[1], outputs=2),
    "CumSum_exclusive": case("CumSum", ROWS, np.int64(1), known=[1], exclusive=1),
    "CumSum_reverse": case("CumSum", ROWS, np.int64(-1), known=[1], reverse=1),
    "CumSum_both": case("CumSum", WHOLE, np.int64(0), known=[1], reverse=1, exclusive=1),
    "TopK_integers": case("TopK", WHOLE, [3], known=[1], outputs=2),
    "TopK_int32": case("TopK", WHOLE.astype("int32"), [2], known=[1], outputs=2, largest=0, axis=0),
    "TopK_smallest": case("TopK", TIES, [2], known=[1], outputs=2, largest=0, axis=0),
}
