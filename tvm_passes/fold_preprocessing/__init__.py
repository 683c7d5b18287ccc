"""Let one kernel make of a camera's picture what a network takes."""

from .._rule import RulePass
from .after_resizing import AFTER_RESIZING
from .resized_picture import ResizedPicture


class FoldPreprocessing(RulePass):
    """Replace all that is done to a picture that is resized, from the function's input on, with one operator.

    After the passes that choose layout and type of the first convolution it takes in what they have put
    before it, too. It may be applied before them and again: TVM's own ToMixedPrecision rounds the mean.
    """

    rules = (ResizedPicture, *AFTER_RESIZING)
