"""Let one kernel make of a camera's image what a network takes."""

from ...engine.rule import RulePass
from .after_resizing import AFTER_RESIZING
from .resized_image import ResizedImage


class FoldPreprocessing(RulePass):
    """Replace all that is done to an image that is resized, from the function's input on, with one operator.

    After the passes that choose layout and type of the first convolution it takes in what they have put
    before it, too. It may be applied before them and again: TVM's own ToMixedPrecision rounds the mean.

    Why legal: the operator resizes, normalises, pads, casts and orders axes, in this order. What comes after
    resizing is taken in as long as it comes in that order, and nothing else uses what lies between.

    >>> x = relay.var("camera", shape=(1, 480, 640, 3), dtype="uint8")
    >>> planes = relay.cast(relay.transpose(x, [0, 3, 1, 2]), "float32") / relay.const(255.0)
    >>> y = relay.image.resize2d(planes, (300, 400), layout="NCHW", method="linear")
    >>> y = relay.nn.pad(y, [(0, 0), (0, 0), (0, 20), (0, 16)])
    >>> mod = tvm.IRModule.from_expr(y)
    >>> print(tvm_passes.as_text(tvm_passes.FoldPreprocessing()(mod)))
    def @main(%camera: Tensor[(1, 480, 640, 3), uint8]) -> Tensor[(1, 3, 320, 416), float32] {
      topi_ext.preprocess(%camera, dtype="float32", image_layout="NHWC", layout="NCHW",
          mean=[0f, 0f, 0f], padded_size=[320, 416], size=[300, 400], std=[255f, 255f, 255f],
          swap_channels=0)
    }
    """

    rules = (ResizedImage, *AFTER_RESIZING)
