"""What the tests of the recorder share."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest


@pytest.fixture
def typed(lab):
    """Run a command as it is typed, with places for {}; it ends with `status`. Returns what it prints, read if JSON."""

    def run(line: str, *places: object, status: int = 0) -> Any:
        done = lab(*shlex.split(line.format(*places)))
        assert done.returncode == status, done
        return json.loads(done.stdout) if "--format json" in line else done.stdout

    return run
