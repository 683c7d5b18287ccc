"""The detectors of tests/batch, and a browser."""

import pytest

from tests.batch.conftest import detector_folder  # noqa: F401  (a fixture)
from tests.command.browser import opened_browser
from tests.command.conftest import tvm_passes_command  # noqa: F401  (a fixture)


@pytest.fixture(scope="session")
def browser():
    with opened_browser() as page:
        yield page
