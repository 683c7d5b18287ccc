"""The file that COCO's own tools read."""

import json
import tarfile

import numpy as np
import pytest
from pycocotools.coco import COCO

from tests.batch.tables import rows
from tvm_passes import batch


@pytest.fixture(scope="module")
def written(photos, detector_folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("coco") / "found.json"
    batch.detect(photos, output, detector_folder("encoded"), format="coco", rows_per_part=5)
    return output


def test_as_pycocotools_reads_it(written, capsys):
    table = rows(written.with_suffix(".parquet"))
    found = COCO(str(written))
    names = [each["file_name"] for each in found.loadImgs(sorted(found.getImgIds()))]
    assert names == sorted(table)
    assert [each["name"] for each in found.loadCats([0, 1, 2])] == ["red", "green", "blue"]
    for image in found.loadImgs(found.getImgIds()):
        row = table[image["file_name"]]
        assert (image["height"], image["width"]) == (row["height"], row["width"])
        annotations = found.loadAnns(found.getAnnIds(image["id"]))
        assert [each["category_id"] for each in annotations] == row["labels"]
        for each, box in zip(annotations, row["boxes"]):
            mask = found.annToMask(each)
            assert mask.shape == (row["height"], row["width"]) and mask.sum() == each["area"] > 0
            left, top, width, height = each["bbox"]
            np.testing.assert_allclose([left, top, left + width, top + height], box, rtol=1e-6)
            assert each["num_keypoints"] == 1 and each["keypoints"][2] == 2


def test_without_masks(photos, detector_folder, tmp_path):
    batch.detect(photos / "day1", tmp_path / "a.parquet", detector_folder("four"), format="coco")
    annotations = json.loads((tmp_path / "a.json").read_text())["annotations"]
    assert annotations and all(
        each["area"] == pytest.approx(each["bbox"][2] * each["bbox"][3]) for each in annotations
    )


def test_of_nothing(tmp_path, detector_folder):
    tarfile.open(tmp_path / "photos.tar", "w").close()
    summary = batch.detect(
        tmp_path / "photos.tar", tmp_path / "a.parquet", detector_folder("four"), format="coco"
    )
    assert summary.images == 0
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["images"] == content["annotations"] == []
