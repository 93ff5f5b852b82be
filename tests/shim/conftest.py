"""These tests run in the process that `tests/test_shim.py` starts, with a stand-in for NVIDIA's driver."""

from __future__ import annotations

import os

import pytest

from lstm_trt.machine.gpu import SHIM_VARIABLE
from tests.support import shim

collect_ignore_glob = [] if os.environ.get(SHIM_VARIABLE) else ["test_*.py"]


def pytest_collection_modifyitems(items, config):
    """Half of the heavy tests, those that PyCUDA runs or the others."""
    half = os.environ.get("SHIM_HALF")
    heavy = [item for item in items if item.get_closest_marker("heavy")]
    others = [item for place, item in enumerate(heavy) if half and place % 2 == int(half)]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """What the processes of a test acquired from the driver is freed when they end."""
    shim.left()
    yield
    assert shim.left() == []
