"""Golden files: JSON and text of each reading command for the recordings in the repository, and its refusals.

`python -m tests.support.golden` rewrites them; use it after an intended change, and review the differences.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from lstm_judge.read.runs import load
from lstm_trt.config.errors import UsageError
from tests.conftest import ROOT, run_here

FOLDER = ROOT / "tests" / "golden"
CASES = json.loads((FOLDER / "cases.json").read_text())
#: Commands of which the text is kept as well.
TEXTS = {
    "verdict-met": ["verdict", "data/epyc/confirm", "--deadline-us", "1000"],
    "verdict-missed": ["verdict", "data/epyc/confirm", "--deadline-us", "270"],
    "verdict-several": ["verdict", "data/epyc/outliers", "--deadline-us", "1000"],
    "outliers": ["outliers", "data/epyc/arrivals"],
    "compare": ["compare", "data/epyc/outliers", "data/epyc/deadline"],
    "scaling": ["scaling", "data/epyc/layers"],
    "replay": ["replay", "data/epyc/confirm", "--period-us", "400", "--deadline-us", "1000"],
    "summarize": ["summarize", "data/epyc/arrivals", "--by-round"],
    **{
        f"table-{name}": [command, f"tests/golden/{file}.csv", *more, "--group-by", "hidden"]
        for name, command, file, *more in (
            ("verdict", "verdict", "before", "--deadline-us", "220", "--percentile", "95"),
            ("outliers", "outliers", "before"),
            ("summarize", "summarize", "before", "--deadline-us", "220"),
            ("replay", "replay", "before", "--period-us", "250"),
            ("compare", "compare", "before", "tests/golden/after.csv"),
            ("compare-misses", "compare", "before", "tests/golden/after.csv", "--deadline-us", "120"),
            ("compare-md", "compare", "before", "tests/golden/after.csv", "--deadline-us", "1000", "--format", "md"),
        )
    },
    "literature": ["lstm-literature", "table", "cell", "layer", "--out", "data/xeon/literature"],
}
#: Command line that must be refused -> its line on standard error.
REFUSALS = json.loads((FOLDER / "refusals.json").read_text())
#: Name -> a table that must be refused, and what the refusal says of it.
BAD_TABLES = json.loads((FOLDER / "bad_tables.json").read_text())
#: The last digits of sums can differ between processors.
RELATIVE = 1e-9


def run(arguments: list[str]) -> tuple[int, object]:
    """Exit status and JSON of a command, run in the project's folder."""
    result = run_here(arguments)
    found = json.loads(result.stdout)
    for part in found if isinstance(found, list) else [found]:
        if "warnings" in part:  # which versions are others depends on what is installed
            part["warnings"] = [line for line in part["warnings"] if "than is installed here" not in line]
    if "list" in arguments:  # which of them are ready depends on what is installed
        found["implementations"] = list(found["implementations"])
    return result.returncode, found


def refusal_of_table(case: dict, folder: Path, suffix: str) -> str:
    """What the refusal says of one of `BAD_TABLES` behind its path; some are no UTF-8."""
    path = folder / f"times{suffix}"
    path.write_bytes(case["text"].encode(errors="surrogateescape"))
    try:
        load(path, unit=case["unit"])
    except UsageError as refusal:
        return str(refusal).removeprefix(str(path))
    return "was read"


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Each number and text of a JSON value with its place, and the size of each list and object."""
    if isinstance(value, dict | list):
        yield f"{place}/", len(value)
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{place}/{name}")
    else:
        yield place, value


def differences(golden: object, found: object) -> list[str]:
    """The places at which two JSON values differ by more than rounding."""
    expected, actual = dict(leaves(golden)), dict(leaves(found))
    unmatched = [f"{place}: only in one of them" for place in expected.keys() ^ actual.keys()]
    return unmatched + [
        f"{place}: {expected[place]!r} -> {actual[place]!r}"
        for place in expected.keys() & actual.keys()
        if not same(expected[place], actual[place])
    ]


def same(golden: object, found: object) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (golden, found))
    return math.isclose(golden, found, rel_tol=RELATIVE) if numbers else golden == found


def text(value: object) -> str:
    """JSON with one line per element, so that differences are readable."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]\n"
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()) + "\n}\n"


if __name__ == "__main__":
    for case in CASES:
        (FOLDER / f"{case['name']}.json").write_text(text(run(case["argv"])[1]))
    for name, arguments in TEXTS.items():
        (FOLDER / f"{name}.txt").write_text(run_here(arguments).stdout)
    refusals = {command: run_here(shlex.split(command)).stderr for command in REFUSALS}
    (FOLDER / "refusals.json").write_text(text(refusals))
    with TemporaryDirectory() as folder:
        for case in BAD_TABLES.values():
            case["line"] = refusal_of_table(case, Path(folder), case["suffixes"][0])
    (FOLDER / "bad_tables.json").write_text(text(BAD_TABLES))
