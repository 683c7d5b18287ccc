"""The tutorials for contributors, which check what they say themselves."""

import runpy


def test_write_a_pass(capsys):
    runpy.run_module("tutorials.02_write_a_pass", run_name="__main__")
    said = capsys.readouterr().out
    assert "nn.leaky_relu(%x, alpha=0.1f)" in said
    assert "aten::maximum_1: a slope of 1.5 is not above 0 and at most 1" in said
    assert "The numbers are the same" in said


def test_add_an_op(capsys):
    runpy.run_module("tutorials.03_add_an_op", run_name="__main__")
    said = capsys.readouterr().out
    assert "5 boxes with 1000: as the oracle" in said
    assert "box_iou: boxes must have the shape (N, 4), not [5, 5]" in said
    assert "box_iou: boxes must be of type float32, not int32" in said
