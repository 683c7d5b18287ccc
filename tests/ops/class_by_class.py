"""An oracle for many boxes, where brute force in NumPy takes too long."""

import numpy as np
import torch
import torchvision


def batched_nms(boxes, scores, class_ids, iou_threshold):
    """What `topi_ext.batched_nms` answers: torchvision on the CPU, class by class; no scores of NaN."""
    kept = [np.zeros(0, "int64")]
    by_class = np.argsort(class_ids, kind="stable")
    begins = np.flatnonzero(np.diff(class_ids[by_class])) + 1
    for members in np.split(by_class, begins):
        picked = torchvision.ops.nms(
            torch.from_numpy(boxes[members]), torch.from_numpy(scores[members]), iou_threshold
        )
        kept.append(members[picked.numpy()])
    kept = np.sort(np.concatenate(kept))
    kept = kept[np.argsort(-scores[kept], kind="stable")]
    indices = np.full(len(scores), -1, "int64")
    indices[: len(kept)] = kept
    return indices, np.array(len(kept), "int32")
