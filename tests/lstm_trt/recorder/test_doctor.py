"""doctor: every runtime has its row, broken ones too, and the page says what to type."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lstm_trt import registry, runtimes
from lstm_trt.machine import checks, facts
from lstm_trt.machine.checks import Check
from lstm_trt.recorder import doctor
from lstm_trt.recorder.doctor import DoctorReport, RuntimeRow

CONTRACT = """
from lstm_trt.config.errors import RuntimeUnavailable
from lstm_trt.runtimes.base import Availability
NAME = DISTRIBUTION = "numpy"
DEVICES = ("cpu", "cuda")
PRECISIONS = {"cpu": ("fp32",), "cuda": ("fp32",)}
NEEDS_ONNX = False
def prepare(request): ...
def availability(device="cpu"):
"""

MODULES = {
    "mixed": CONTRACT
    + """
    if device == "cpu":
        return Availability(True, "1.2.3", "Planted CPU")
    return Availability(False, "1.2.3", None, "no driver", "sudo apt install planted-driver")
""",
    "raises": CONTRACT + "    raise KeyError(device)\n",
    "refuses": CONTRACT + "    raise RuntimeUnavailable('refuses', 'needs sm_90', 'use another card')\n",
    "exits": "raise SystemExit('library wants to leave')\n",
    "syntax": "def :\n",
    "needs_package": "import a_package_that_nobody_has\n" + CONTRACT + "    ...\n",
    "lacks": "NAME = 'lacks'\n",
}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    folder = tmp_path / "planted_runtimes"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield [f"planted_runtimes.{name}" for name in MODULES]
    for name in [name for name in sys.modules if name.split(".")[0] == "planted_runtimes"]:
        del sys.modules[name]


def test_a_broken_runtime_is_a_row_and_hides_no_other(planted):
    report = doctor.examine([*planted, "no-such-runtime"])
    rows = {(row.runtime.removeprefix("planted_runtimes."), row.device): row for row in report.runtimes}
    assert rows["mixed", "cpu"] == RuntimeRow(True, "1.2.3", "Planted CPU", runtime=planted[0], device="cpu")
    assert rows["mixed", "cuda"].remedy == "sudo apt install planted-driver"
    assert rows["raises", "cpu"].reason == "asking it failed with KeyError: 'cpu'" and not rows["raises", "cuda"].ready
    assert (rows["refuses", "cpu"].reason, rows["refuses", "cpu"].remedy) == ("needs sm_90", "use another card")
    assert rows["exits", None].reason == "asking it failed with SystemExit: library wants to leave"
    assert rows["syntax", None].reason.startswith("asking it failed with SyntaxError")
    assert "a_package_that_nobody_has" in rows["needs_package", None].remedy
    assert "lacks" in rows["lacks", None].reason
    assert "unknown runtime" in rows["no-such-runtime", None].reason
    assert [row.runtime for row in report.runtimes if row.ready] == [planted[0]]


def test_the_registry_is_examined_on_every_device():
    report = doctor.examine()
    assert {row.runtime for row in report.runtimes} == set(registry.table("RUNTIMES"))
    for name in registry.table("RUNTIMES"):
        devices = [row.device for row in report.runtimes if row.runtime == name]
        assert devices == [None] or devices == list(runtimes.load_runtime(name).DEVICES)
    for row in report.runtimes:
        assert row.ready or row.reason
    plain = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert len(plain["runtimes"]) == len(report.runtimes)
    assert set(plain["checks"][0]) == {"name", "value", "verdict", "meaning", "remedy"}
    assert plain["machine"]["cpu"] == facts.cpu_name()
    assert plain["versions"]["torch"]


VERSIONS = {"lstm_trt": "0.2.0", "python": "3.11.9", "kernel": "6.1"}
MACHINE = {"cpu": "Planted CPU", "logical_cores": 2, "allowed_cores": "0-1", "gpus": []}


def mixed() -> DoctorReport:
    """A long reason and remedy, one that two runtimes share, a runtime that is ready, and checks of each verdict."""
    long = "a reason that goes on and on, since libraries like to explain themselves at length when they fail " * 2
    remedy = "pip install 'one[two]' " + "and then some " * 12
    lacking = (False, "1.0", None, "no driver", "apt install driver")
    return DoctorReport(
        runtimes=[
            RuntimeRow(False, None, None, long.strip(), remedy, runtime="broken-one", device="cuda"),
            *(RuntimeRow(*lacking, runtime=name, device="cuda") for name in ("mended-soon", "mended-too")),
            RuntimeRow(True, "2.13.0+cpu", "Planted CPU", runtime="good-one", device="cpu"),
        ],
        versions=VERSIONS | {"libc": None, "numpy": "2.4", "scipy": None},
        machine=MACHINE | {"gpus": [{"name": "NVIDIA X"}]},
        checks=[
            Check("clock source", "tsc", "good", "fine"),
            Check("turbo", "not visible", "unknown", "may move"),
            Check("isolated cores", "none", "attention", "shared", "kernel command line: isolcpus=1"),
            Check("tickless cores", "none", "attention", "ticks", "kernel command line: nohz_full=1"),
        ],
    )


def lacking(gpus: list[dict], ready: bool) -> DoctorReport:
    """Four runtimes on cuda, each of which lacks something else, and one that may be ready."""
    lacks = {f"lacks-{name}": (f"no {name}", f"install {name}") for name in ("torch", "provider", "compiler")}
    rows = [RuntimeRow(False, None, None, *texts, runtime=name, device="cuda") for name, texts in lacks.items()]
    rows.append(RuntimeRow(ready, "1.0", None, "no driver", "install driver", runtime="fourth", device="cuda"))
    rows.append(RuntimeRow(False, None, None, "no module", "install module", runtime="on-cpu", device="cpu"))
    return DoctorReport(rows, VERSIONS, MACHINE | {"gpus": gpus}, [])


def crowded() -> DoctorReport:
    """As on a virtual machine of two cores that has all runtimes for the CPU: five settings to mend, four unknown."""
    long = "a sentence about what this setting does to the latencies of calls on the timed core"
    found = [Check(f"mended {k}", "as it should be", "good", f"{long} {k}") for k in range(11)]
    found += [Check(f"hidden {k}", "not visible", "unknown", f"{long} {k}") for k in range(4)]
    for k in range(5):
        remedy = f"{checks.KERNEL_LINE}argument{k}=1" if k < 3 else f"a command, {k}"
        found.append(Check(f"setting {k}", "none", "attention", f"{long} {k}", remedy))
    names = [name for name in registry.table("RUNTIMES") if "tensorrt" not in name]
    rows = [RuntimeRow(True, "2.13.0", "Planted CPU", runtime=name, device="cpu") for name in names]
    rows += [RuntimeRow(False, "2.13.0", None, f"no {k}", f"install {k}", runtime=k, device="cuda") for k in names]
    return DoctorReport(rows, VERSIONS | dict.fromkeys(doctor.PACKAGES, "2026.10.1"), MACHINE, found)


#: Without a GPU that is what all runtimes of one lack; with one, or if a runtime can use one that NVML does not show,
#: each says what it lacks.
REPORTS = {
    "mixed": mixed(),
    "no GPU": lacking([], ready=False),
    "a GPU": lacking([{"name": "NVIDIA X"}], ready=False),
    "a GPU that NVML does not show": lacking([], ready=True),
    "crowded": crowded(),
}
PAGES = Path(__file__).with_name("doctor.txt")


def pages() -> str:
    return "\n".join(f"=== {name}\n{doctor.render(report, 100)}" for name, report in REPORTS.items())


def test_pages_are_those_of_the_golden_text():
    """`python -m tests.lstm_trt.recorder.test_doctor` rewrites it; review the differences."""
    text = pages()
    assert text == PAGES.read_text()
    assert text.isascii() and "\033" not in text and max(map(len, text.splitlines())) <= 100
    assert len(doctor.render(REPORTS["crowded"], 100).splitlines()) <= 40


def test_the_page_of_this_machine_fits():
    report = doctor.examine()
    lines = doctor.render(report).splitlines()
    assert max(map(len, lines)) <= 100
    whole = " ".join(" ".join(lines).split())
    for check in report.checks:
        assert check.verdict in checks.VERDICTS and f"{check.name}: {check.value}" in whole


def test_nothing_at_all_can_still_be_rendered():
    assert "0 of 0 ready" in doctor.render(DoctorReport([], VERSIONS, facts.describe("cpu"), []))


if __name__ == "__main__":
    PAGES.write_text(pages())
