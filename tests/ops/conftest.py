"""What several tests of operators need."""

import pytest

from topi_ext.conv2d_nhwc import onednn


class Counting(onednn._OfThread):
    def __init__(self):
        super().__init__()
        self.texts = []

    def run(self, text, *arguments):
        self.texts.append(text)
        super().run(text, *arguments)


@pytest.fixture
def in_python(monkeypatch):
    """The problems of the calls of oneDNN that get to Python."""
    thread = Counting()
    monkeypatch.setattr(onednn, "_of_thread", thread)
    return thread.texts


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """What is kept of cuDNN's plans is for this test alone."""
    monkeypatch.setenv("TVM_PASSES_CACHE", str(tmp_path))
