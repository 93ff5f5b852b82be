"""doctor: every runtime has its row, broken ones too, and the page says what to type."""

from __future__ import annotations

import json
import sys
import textwrap

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


@pytest.fixture
def report():
    long = "a reason that goes on and on, since libraries like to explain themselves at length when they fail " * 2
    remedy = "pip install 'one[two]' " + "and then some " * 12
    return DoctorReport(
        runtimes=[
            RuntimeRow(False, None, None, long.strip(), remedy, runtime="broken-one", device="cuda"),
            RuntimeRow(False, "1.0", None, "no driver", "apt install driver", runtime="mended-soon", device="cuda"),
            RuntimeRow(False, "1.0", None, "no driver", "apt install driver", runtime="mended-too", device="cuda"),
            RuntimeRow(True, "2.13.0+cpu", "Planted CPU", runtime="good-one", device="cpu"),
        ],
        versions={
            "lstm_trt": "0.2.0",
            "python": "3.11.9",
            "kernel": "6.1",
            "libc": None,
            "numpy": "2.4",
            "scipy": None,
        },
        machine={"cpu": "Planted CPU", "logical_cores": 2, "allowed_cores": "0-1", "gpus": [{"name": "NVIDIA X"}]},
        checks=[
            Check("clock source", "tsc", "good", "fine"),
            Check("turbo", "not visible", "unknown", "may move"),
            Check("isolated cores", "none", "attention", "shared", "kernel command line: isolcpus=1"),
            Check("tickless cores", "none", "attention", "ticks", "kernel command line: nohz_full=1"),
        ],
    )


def test_the_page_shows_what_is_ready_and_what_to_type(report):
    page = doctor.render(report)
    lines = page.splitlines()
    assert max(map(len, lines)) <= 100
    assert page.isascii() and "\033" not in page
    assert "RUNTIMES: 1 of 4 ready" in lines
    assert "HOST: 1 good, 2 need attention, 1 unknown" in lines
    assert "not installed: scipy" in lines and "NVIDIA X" in page
    first = lines[lines.index("RUNTIMES: 1 of 4 ready") + 1]
    assert first.split() == ["ready", "cpu", "good-one", "(2.13.0+cpu)"]  # what is ready comes first
    arrow = lines.index(next(line for line in lines if line.strip().startswith("-> pip install 'one[two]'")))
    assert lines[arrow + 1].startswith(" " * 16)  # a long remedy goes on below itself
    shared = lines.index("             -> apt install driver")  # once for those that share reason and remedy
    assert lines[shared - 1] == "  not ready  cuda  mended-soon (1.0), mended-too (1.0): no driver"
    assert "-> kernel command line: isolcpus=1 nohz_full=1 (" in page
    assert page.index("isolated cores") < page.index("turbo") < page.index("clock source")


def planted_report(gpus: list[dict], ready: bool) -> DoctorReport:
    """Four runtimes on cuda, each of which lacks something else, and one that may be ready."""
    lacking = {f"lacks-{name}": (f"no {name}", f"install {name}") for name in ("torch", "provider", "compiler")}
    rows = [RuntimeRow(False, None, None, *texts, runtime=name, device="cuda") for name, texts in lacking.items()]
    rows.append(RuntimeRow(ready, "1.0", None, "no driver", "install driver", runtime="fourth", device="cuda"))
    rows.append(RuntimeRow(False, None, None, "no module", "install module", runtime="on-cpu", device="cpu"))
    machine = {"cpu": "Planted CPU", "logical_cores": 2, "allowed_cores": "0-1", "gpus": gpus}
    return DoctorReport(rows, {"lstm_trt": "0", "python": "3", "kernel": "6"}, machine, [])


def test_without_a_gpu_that_is_what_all_runtimes_of_a_gpu_lack():
    """With one, or if a runtime can use one that NVML does not show, each says what it lacks."""
    report = planted_report([], ready=False)
    page = doctor.render(report)
    (line,) = [line for line in page.splitlines() if line.endswith(": no NVIDIA GPU")]
    assert all(row.runtime in line for row in report.runtimes if row.device == "cuda")
    assert "install torch" not in page and "nvidia-smi" in page
    assert "on-cpu: no module" in page and "-> install module" in page
    for report in (planted_report([{"name": "NVIDIA X"}], ready=False), planted_report([], ready=True)):
        page = doctor.render(report)
        assert all(row.ready or (row.reason in page and row.remedy in page) for row in report.runtimes)


def test_the_page_has_at_most_40_lines_and_what_needs_attention_is_on_it():
    """As on a virtual machine of two cores that has all runtimes for the CPU: five settings to mend, four unknown."""
    kernel = checks.KERNEL_LINE
    long = "a sentence about what this setting does to the latencies of calls on the timed core"
    attention = [Check(f"setting {k}", "none", "attention", f"{long} {k}", f"{kernel}argument{k}=1") for k in range(3)]
    attention += [Check(f"other {k}", "none", "attention", f"{long} {k}", f"a command, {k}") for k in range(2)]
    unknown = [Check(f"hidden {k}", "not visible", "unknown", f"{long} {k}") for k in range(4)]
    good = [Check(f"mended {k}", "as it should be", "good", f"{long} {k}") for k in range(11)]
    names = [name for name in registry.table("RUNTIMES") if "tensorrt" not in name]
    rows = [RuntimeRow(True, "2.13.0", "Planted CPU", runtime=name, device="cpu") for name in names]
    rows += [RuntimeRow(False, "2.13.0", None, f"no {k}", f"install {k}", runtime=k, device="cuda") for k in names]
    machine = {"cpu": "Planted CPU", "logical_cores": 2, "allowed_cores": "0-1", "gpus": []}
    versions = {"lstm_trt": "0", "python": "3", "kernel": "6"} | dict.fromkeys(doctor.PACKAGES, "2026.10.1")
    page = doctor.render(DoctorReport(rows, versions, machine, [*good, *unknown, *attention]), 100)
    assert len(page.splitlines()) <= 40
    whole = " ".join(page.split())
    for check in (*attention, *unknown):
        assert f"{check.name}: {check.value}; {check.meaning}" in whole
        assert check.remedy.removeprefix(kernel) in whole
    assert all(f"{check.name}: {check.value}" in whole for check in good) and all(name in whole for name in names)


def test_the_page_of_this_machine_fits():
    report = doctor.examine()
    lines = doctor.render(report).splitlines()
    assert max(map(len, lines)) <= 100, textwrap.shorten(max(lines, key=len), 200)
    whole = " ".join(" ".join(lines).split())
    for check in report.checks:
        assert check.verdict in checks.VERDICTS
        assert f"{check.name}: {check.value}" in whole


def test_nothing_at_all_can_still_be_rendered():
    page = doctor.render(DoctorReport([], {"lstm_trt": "0", "python": "3", "kernel": "6"}, facts.describe("cpu"), []))
    assert "0 of 0 ready" in page
