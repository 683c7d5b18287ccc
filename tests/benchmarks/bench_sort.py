"""Time argsort, sort and topk on a GPU versus torch: `python -m tests.benchmarks.bench_sort`.

torch returns int64 indices and TVM int32; torch's topk guarantees no order among ties, ours does.
`--sweep` instead times argsort for several tile shapes, to choose those in `topi_ext/sort/tile.py`.
"""

import argparse

import torch

from tests.benchmarks import _common as common
from topi_ext.sort import merge_sort
from topi_ext.sort.tile import MANY_TILES, ONE_TILE, TileShape

from tvm import relay

SHAPES = [(1, 1_000), (5, 2_000), (1, 20_000), (1, 90_000), (1, 1_000_000)]
# What detectors take the best of: an SSD's classes, levels of an RPN, of FCOS and of RetinaNet at 800x1333.
SELECTED = {400: [(90, 8_732)], 1000: [(1, 12_600), (1, 50_400), (1, 201_600), (1, 1_528_800)]}
SELECTED[1000] += [(1, 859_950), (1, 3_439_800), (1, 13_759_200)]
TILES = [TileShape(128, 7), TileShape(128, 11), TileShape(128, 15), TileShape(256, 5), TileShape(256, 7)]
TILES += [TileShape(256, 9), TileShape(256, 11), TileShape(256, 15), TileShape(512, 3), TileShape(512, 5)]
TILES += [TileShape(512, 7), TileShape(512, 9), TileShape(512, 11), TileShape(1024, 3), TileShape(1024, 5)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep", action="store_true", help="time argsort for several shapes of tile")
    args = parser.parse_args()
    common.require_gpu()
    sweep() if args.sweep else compare()


def compare():
    bandwidth = common.copy_bandwidth()
    rows = []
    for shape in SHAPES:
        data = random_keys(shape)
        for name, function, with_torch, check, bytes_written in operations(data):
            module = common.compile_for_gpu(function, data)
            module.run()
            check(common.outputs_of(module))
            ours, theirs = common.median_ms(module.run), common.median_ms(with_torch)
            floor = (data.nbytes + bytes_written) / bandwidth * 1e3
            rows.append([f"{name}, {shape_name(shape)}", ours, theirs, f"{theirs / ours:.2f}", floor])
    rows += list(selections(bandwidth))
    header = ["descending, float32", "ours", "torch", "torch / ours", "floor"]
    note = "floor: the time to read the keys once and to write the results once at the bandwidth of a copy."
    table = common.markdown_table(header, rows)
    common.publish("sort", "Sorting", f"{common.environment(bandwidth)}\n\n{table}\n\n{note}")


def operations(data):
    """Name, Relay function, the same with torch, a check of the outputs, bytes that have to be written."""
    x = relay.var("data", shape=tuple(data.shape))
    size = data.numel()
    values, indices = torch.sort(data, stable=True, descending=True)

    def by_torch():
        torch.sort(data, stable=True, descending=True)

    argsort = relay.argsort(x, is_ascend=False, dtype="int32")
    yield "argsort", relay.Function([x], argsort), by_torch, lambda out: same(out, [indices]), 4 * size
    sort = relay.sort(x, is_ascend=False)
    yield "sort", relay.Function([x], sort), by_torch, lambda out: same(out, [values]), 4 * size
    for k in (100, 1000):
        topk = relay.topk(x, k, dtype="int32").astuple()
        expected = [values[:, :k], indices[:, :k]]
        yield (
            f"topk {k}",
            relay.Function([x], topk),
            lambda k=k: torch.topk(data, k),
            lambda out, expected=expected: same(out, expected),
            8 * k * data.shape[0],
        )


def selections(bandwidth):
    """Rows of the table: top-k of scores, of which all, or only a few, are above a threshold."""
    for k, shapes in SELECTED.items():
        for shape in shapes:
            for share, said in ((1.0, ""), (1e-4, ", few above -inf")):
                data = random_scores(shape, share)
                values, indices = torch.sort(data, stable=True, descending=True)
                x = relay.var("data", shape=shape)
                function = relay.Function([x], relay.topk(x, k, dtype="int32").astuple())
                module = common.compile_for_gpu(function, data)
                module.run()
                same(common.outputs_of(module), [values[:, :k], indices[:, :k]])
                ours = common.median_ms(module.run)
                theirs = common.median_ms(lambda data=data, k=k: torch.topk(data, k))
                floor = (data.nbytes + 8 * k * shape[0]) / bandwidth * 1e3
                name = f"topk {k}, {shape_name(shape)}{said}"
                yield [name, ours, theirs, f"{theirs / ours:.2f}", floor]


def random_scores(shape, share):
    generator = torch.Generator("cuda").manual_seed(0)
    scores = torch.rand(shape, generator=generator, device="cuda")
    return torch.where(torch.rand(shape, generator=generator, device="cuda") < share, scores, -torch.inf)


def sweep():
    """Print the times of argsort by tile shape (limited by 48 KiB of shared memory)."""
    rows = []
    for tile in TILES:
        merge_sort.tile_shape = lambda _length, tile=tile: tile
        times = []
        for shape in SHAPES:
            data = random_keys(shape)
            x = relay.var("data", shape=shape)
            module = common.compile_for_gpu(
                relay.Function([x], relay.argsort(x, is_ascend=False, dtype="int32")), data
            )
            module.run()
            same(common.outputs_of(module), [torch.sort(data, stable=True, descending=True)[1]])
            times.append(common.median_ms(module.run))
        chosen = " (in use)" if tile in (MANY_TILES, *ONE_TILE) else ""
        rows.append([f"{tile.threads} threads x {tile.items}{chosen}", *times])
    print(common.markdown_table(["tile", *map(shape_name, SHAPES)], rows))


def random_keys(shape):
    """Keys with a few ties."""
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randint(0, 10 * shape[1], shape, generator=generator, device="cuda").float() / shape[1]


def same(outputs, expected):
    for output, value in zip(outputs, expected):
        if not torch.equal(output.to(value.dtype), value):
            raise SystemExit("the results differ from torch's: nothing was timed")


def shape_name(shape):
    return " x ".join(f"{extent:,}" for extent in shape if extent > 1)


if __name__ == "__main__":
    main()
