"""These tests run in the process that `test_shim.py` starts, with a stand-in for NVIDIA's driver."""

from __future__ import annotations

import os

import pytest

from lstm_trt.machine.gpu import SHIM_VARIABLE
from lstm_trt.recorder.pool import WorkerPool
from lstm_trt.recorder.process import Process
from tests.support import shim

collect_ignore_glob = [] if os.environ.get(SHIM_VARIABLE) else ["test_*.py"]


def pytest_collection_modifyitems(items, config):
    """Half of the heavy tests, those that PyCUDA runs or the others."""
    half = os.environ.get("SHIM_HALF")
    heavy = [item for item in items if item.get_closest_marker("heavy")]
    others = [item for place, item in enumerate(heavy) if half and place % 2 == int(half)]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session", autouse=True)
def one_preparer(warm_preparer):
    """What a test plants for the driver is not for the preparing process, so that one serves all tests."""
    shared, begun = WorkerPool._reference_process, dict(os.environ)

    def of_all(pool: WorkerPool) -> Process:
        planted = {name for name in (*os.environ, *begun) if name.startswith("SHIM_") or name == "XDG_CACHE_HOME"}
        with pytest.MonkeyPatch.context() as patch:
            for name in planted:
                if name in begun:
                    patch.setenv(name, begun[name])
                else:
                    patch.delenv(name)
            return shared(pool)

    WorkerPool._reference_process = of_all
    yield
    WorkerPool._reference_process = shared


@pytest.fixture(autouse=True)
def nothing_is_left():
    """What the processes of a test acquired from the driver is freed when they end."""
    shim.left()
    yield
    assert shim.left() == []
