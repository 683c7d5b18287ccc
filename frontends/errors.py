"""What a frontend raises when a model cannot be imported."""


class ImportFailure(ValueError):
    """One sentence that names what in the model stands in the way, and what to do about it.

    What TVM or ONNX said, if they said anything, is the `__cause__`.
    """
