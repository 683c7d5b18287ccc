"""Turn a camera image into the input of a network with one kernel."""

from ...engine.rule import RulePass
from .after_resizing import AFTER_RESIZING
from .resized_image import ResizedImage


class FoldPreprocessing(RulePass):
    """Replace the preprocessing of an image, from the function's input on, with one operator.

    Applied after the passes that choose the layout and type of the first convolution, it also folds the
    operators that they put in front of it. It may be applied before them and again after them; apply it
    before TVM's own ToMixedPrecision, which rounds the mean.

    Why legal: the operator resizes, normalizes, pads, casts and transposes, in this order. Operators after
    the resizing are folded as long as they come in this order and no intermediate result has another user.
    Images that are put together and were preprocessed alike, of whatever sizes, are preprocessed together.

    >>> x = relay.var("camera", shape=(1, 480, 640, 3), dtype="uint8")
    >>> planes = relay.cast(relay.transpose(x, [0, 3, 1, 2]), "float32") / relay.const(255.0)
    >>> y = relay.image.resize2d(planes, (300, 400), layout="NCHW", method="linear")
    >>> y = relay.nn.pad(y, [(0, 0), (0, 0), (0, 20), (0, 16)])
    >>> mod = tvm.IRModule.from_expr(y)
    >>> print(tvm_passes.as_text(tvm_passes.FoldPreprocessing()(mod)))
    def @main(%camera: Tensor[(1, 480, 640, 3), uint8]) -> Tensor[(1, 3, 320, 416), float32] {
      topi_ext.preprocess(%camera, dtype="float32", image_layout="NHWC", layout="NCHW",
          mean=[0f, 0f, 0f], padded_channels=3, padded_size=[320, 416], size=[300, 400],
          std=[255f, 255f, 255f], swap_channels=0)
    }
    """

    rules = (ResizedImage, *AFTER_RESIZING)
