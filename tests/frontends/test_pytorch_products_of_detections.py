"""Products of matrices whose number, or whose rows, a filter determines: masks, attention, own filters."""

import pytest
import torch

import frontends
from tests.helpers import apply, quick, runner
from tvm_passes import MakeDetectionStatic

ROWS = 9
KEPT = torch.ones(ROWS), torch.zeros(ROWS), torch.linspace(0, 1, ROWS), torch.eye(ROWS)[0]
MAPS = torch.linspace(-1, 1, 4 * 6 * 8).sin().reshape(4, 6, 8)

PRODUCTS = {
    "filters of each": lambda x, maps: torch.bmm(
        x.reshape(-1, 6, 4), maps.reshape(1, 4, 48).expand(x.shape[0], 4, 48)
    ),
    "matrices of each": lambda x, maps: x.reshape(-1, 4, 6) @ x.reshape(-1, 6, 4),
    "matrices of each by one": lambda x, maps: x.reshape(-1, 4, 6) @ maps[0],
    "one by matrices of each": lambda x, maps: maps[0, :, :4] @ x.reshape(-1, 4, 6),
    "vectors of each": lambda x, maps: x.reshape(-1, 4, 6) @ maps[0, :, 0],
    "a vector by each": lambda x, maps: maps[0, :, 0] @ x.reshape(-1, 6, 4),
    "of four axes": lambda x, maps: x.reshape(-1, 2, 2, 6) @ maps[None, :2],
    "similarities": lambda x, maps: torch.mm(x, x.t()),
    "sums over all": lambda x, maps: torch.matmul(x.t(), x),
    "attention": lambda x, maps: (x @ x.t()).softmax(-1) @ x,
    "added": lambda x, maps: torch.baddbmm(
        x.reshape(-1, 4, 6)[..., :4], x.reshape(-1, 4, 6), x.reshape(-1, 6, 4)
    ),
    "masks by einsum": lambda x, maps: torch.einsum("nc,chw->nhw", x[:, :4], maps),
    "einsum of each": lambda x, maps: torch.einsum("nij,nkj->nik", x.reshape(-1, 4, 6), x.reshape(-1, 4, 6)),
}
OF_PROTOTYPES = {
    "masks": lambda x, maps: x[:, :4] @ maps.flatten(1),
    "masks of pixels": lambda x, maps: (maps.flatten(1).t() @ x[:, :4].t()).t(),
    "masks of maps": lambda x, maps: (maps.permute(1, 2, 0) @ x[:, :4].t()).permute(2, 0, 1),
}


class OfDetections(torch.nn.Module):
    def __init__(self, product):
        super().__init__()
        self.product = product

    def forward(self, boxes, scores, maps):
        return self.product(boxes[scores > 0.4], maps)


def assert_right(product):
    network, boxes = OfDetections(product), torch.linspace(0, 3, 24 * ROWS).cos().reshape(ROWS, 24)
    mod, _ = frontends.from_pytorch(network, [boxes, KEPT[2], MAPS])
    compute = runner(mod, quick())
    for scores in KEPT:
        (found,) = compute(boxes.numpy(), scores.numpy(), MAPS.numpy())
        torch.testing.assert_close(
            torch.from_numpy(found), network(boxes, scores, MAPS), rtol=1e-4, atol=1e-5
        )
    return mod


@pytest.mark.parametrize("product", PRODUCTS)
def test_products(product):
    assert_right(PRODUCTS[product])


@pytest.mark.parametrize("product", OF_PROTOTYPES)
def test_masks_of_prototypes_become_static(product):
    static, _ = apply(MakeDetectionStatic("padded"), assert_right(OF_PROTOTYPES[product]))
    assert "num_detections" in static["main"].attrs["output_names"]
