"""Golden texts of tests: what is said of planted recordings, and in which words something is refused.

`python -m tests.support.said` rewrites them; use it after an intended change, and review the differences.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lstm_trt.config.errors import UsageError
from tests.conftest import ROOT

FOLDER, REWRITTEN = ROOT / "tests" / "golden" / "said", "REWRITE_SAID"


def said(*texts: str) -> None:
    """Fails unless these are the texts that the running test had when the golden ones were written."""
    running = os.environ["PYTEST_CURRENT_TEST"]
    module, test = re.fullmatch(r"tests/(?:.*/)?(\w+)\.py::(.*) \(call\)", running).groups()
    test = re.sub(r"\[seed=\d+\]|-seed=\d+(?=\])|@[^\]]*$", "", test)
    path = FOLDER / f"{module}.json"
    golden = json.loads(path.read_text()) if path.exists() else {}
    found = [text.splitlines() for text in texts]
    if REWRITTEN in os.environ:
        path.write_text(json.dumps(golden | {test: found}, indent=1, sort_keys=True) + "\n")
    else:
        assert found == golden.get(test)


def refusal(ask: Callable, *arguments: object, folder: Path = ROOT, **options: object) -> str:
    """In which line this is refused; paths of a temporary folder are left out."""
    with pytest.raises(UsageError) as caught:
        ask(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "").replace(str(folder), "the folder")


if __name__ == "__main__":
    os.environ[REWRITTEN] = "1"
    for old in FOLDER.glob("*.json"):
        old.unlink()
    users = [path for path in (ROOT / "tests").rglob("test_*.py") if "tests.support.said import" in path.read_text()]
    pytest.main(["-q", "-p", "no:xdist", *map(str, users)])
