"""What the tests of the command line share."""

from __future__ import annotations

import pytest


@pytest.fixture
def run(lab):
    """Run a command: (exit status, standard output, standard error)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        result = lab(*arguments)
        return result.returncode, result.stdout, result.stderr

    return call
