"""The files that set the project up agree with one another."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from benchmarks import gpu_packages
from tests.conftest import ROOT, ran
from tests.support.distributions import tracked_files
from tests.support.packages import PACKAGES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONSTRAINTS = {
    requirement.name.lower().replace("_", "-"): requirement
    for requirement in map(Requirement, (ROOT / "constraints.txt").read_text().splitlines())
}
#: The extras that `make` installs with `constraints.txt`.
PINNED = ("record", "lab", "dev", "types", "docs", "frameworks", "cluster", "pycuda")


def of_extra(extra: str) -> list[str]:
    """The requirements of an extra, and those of the extras of this package that it names."""
    found = []
    for text in EXTRAS[extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            for other in requirement.extras:
                found += of_extra(other)
        else:
            found.append(text)
    return found


def names(requirements) -> set[str]:
    return {Requirement(text).name for text in requirements}


def test_constraints_are_exact_versions_and_nothing_else():
    for requirement in CONSTRAINTS.values():
        assert re.fullmatch(r"==[0-9][0-9A-Za-z.]*", str(requirement.specifier)), requirement
        assert requirement.url is None
    assert str(CONSTRAINTS["torch"].specifier) == "==2.13.0"


def test_the_metadata_name_the_authors_of_the_licence_and_the_oldest_python():
    (author,) = PROJECT["authors"]
    assert author.keys() == {"name"} and author["name"] in (ROOT / "LICENSE").read_text()
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in PROJECT["classifiers"]


def test_what_is_pinned_runs_on_the_oldest_python_that_the_project_takes():
    """Else pip looks for another version of everything, for an hour, where the Python is older than the author's."""
    (oldest,) = SpecifierSet(PROJECT["requires-python"])
    judged = 0
    for installed in metadata.distributions():
        requirement = CONSTRAINTS.get(installed.name.lower().replace("_", "-"))
        if requirement is None or not requirement.specifier.contains(installed.version):
            continue
        judged += 1
        wanted = SpecifierSet(installed.metadata.get("Requires-Python") or "")
        assert oldest.operator == ">=" and wanted.contains(f"{oldest.version}.0"), f"{installed.name} {wanted}"
    assert judged > 20


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *(text for extra in PINNED for text in of_extra(extra))])
def test_what_is_installed_is_pinned_within_its_range(text):
    requirement = Requirement(text)
    (pinned,) = CONSTRAINTS[requirement.name.lower().replace("_", "-")].specifier
    assert requirement.specifier.contains(pinned.version), text


#: Distributions whose modules have other names, also where they are not installed.
MODULES = {
    "nvidia-ml-py": {"pynvml"},
    "cuda-bindings": {"cuda"},
    "tensorflow-cpu": {"tensorflow"},
    "apache-tvm": {"tvm"},
    "markupsafe": {"markupsafe"},
    "ipython": {"IPython"},
    "pyyaml": {"yaml"},
    "tensorrt-rtx": {"tensorrt_rtx"},
}

#: Imported where a framework brings it along, or in an environment of its own (`ENVIRONMENT` of its module).
ELSEWHERE = {"mxnet"}


def test_what_the_packages_import_is_declared():
    declared = set(ELSEWHERE)
    for text in [*PROJECT["dependencies"], *(text for extra in EXTRAS for text in of_extra(extra))]:
        name = Requirement(text).name
        declared |= MODULES.get(name.lower(), {name.replace("-", "_")})
    imported = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for first, second in re.findall(
            r"(?m)^ *(?:from (\w+)\S* import \S|import (\w+)\S*(?: as \w+)?$)", path.read_text()
        ):
            imported.setdefault(first or second, path)
    known = declared | sys.stdlib_module_names | {*PACKAGES}
    assert {"numpy", "yaml", "tvm", "json"} <= imported.keys()
    assert {name: path for name, path in imported.items() if name not in known} == {}


def test_the_packages_for_a_driver_are_those_of_the_extras():
    for major, purposes in gpu_packages.REQUIREMENTS.items():
        for extra in ("tensorrt", "rtx"):
            ranges = {Requirement(text).name: Requirement(text).specifier for text in of_extra(extra)}
            for name, specifier in ((item.name, item.specifier) for item in map(Requirement, purposes[extra])):
                if name != "cuda-bindings":
                    assert specifier == ranges[name.removesuffix(f"-cu{major}")]
                else:
                    (lowest,) = ranges[name]
                    assert specifier.contains(f"{major}.9") and not specifier.contains(f"{major + 1}.0")
                    assert not specifier.contains("12.8") and lowest.version == "12.9"
    makefile = (ROOT / "Makefile").read_text()
    assert f"HEADERS ?= {' '.join(gpu_packages.REQUIREMENTS[13]['headers'])}\n" in makefile


def test_without_a_driver_make_gpu_ends_in_one_line_before_it_installs_anything(tmp_path):
    venv = os.path.relpath(tmp_path / "venv", ROOT).replace(" ", "\\ ")  # make splits names at spaces
    command = ["make", f"PYTHON={sys.executable}", f"VENV={venv}", "gpu"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    result = ran(*command, status=None, env=environment)
    assert result.returncode != 0 and not (tmp_path / "venv").exists()
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("make: "))
    assert "nvidia-smi" in line


def test_the_conda_environment_is_the_whole_gpu_lab():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    conda = [item for item in environment["dependencies"] if isinstance(item, str)]
    (pip,) = (item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    python, pycuda = (
        next(Requirement(i) for i in conda if Requirement(i).name == name) for name in ("python", "pycuda")
    )
    assert "conda-forge" in environment["channels"]
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert python.specifier.contains(f"{lowest}.0") and not python.specifier.contains("3.10.9")
    # PyCUDA comes built from conda-forge, in the range that pip would accept as well.
    (ours,) = (Requirement(text) for text in EXTRAS["pycuda"])
    assert pycuda.specifier == ours.specifier
    editable, *packages = pip
    newest = max(gpu_packages.REQUIREMENTS)
    assert tuple(packages) == gpu_packages.REQUIREMENTS[newest]["tensorrt"]
    assert f"a driver that supports CUDA {newest}" in (ROOT / "environment.yml").read_text()
    match = re.fullmatch(r"-e \.\[(?P<extras>[a-z,]+)\]", editable)
    installed = names(PROJECT["dependencies"] + packages)
    for extra in match["extras"].split(","):
        installed |= names(of_extra(extra))
    # Documented there, and apart from the lab as in the Makefile: it would bring a TensorFlow without a GPU.
    assert "frameworks" not in match["extras"].split(",")
    assert "make test-frameworks" in (ROOT / "environment.yml").read_text()
    promised = "jupyterlab nbstripout torch onnx tensorrt-cu13 pycuda pandas seaborn matplotlib scipy"
    assert set(promised.split()) <= installed


def test_every_extra_with_which_something_is_recorded_has_what_recording_needs():
    for extra in ("lab", "dev", "frameworks", "cluster", "openvino", "tensorrt", "rtx"):
        assert {*EXTRAS["record"]} <= {*of_extra(extra)}, extra
    assert not names(EXTRAS["record"]) & names(PROJECT["dependencies"])


def test_make_sweep_installs_what_recording_needs(tmp_path):
    assert " -e '.[record]'\n" in ran("make", "-n", f"VENV={os.path.relpath(tmp_path, ROOT)}", "sweep").stdout


def test_ci_calls_the_readmes_test_command_first():
    script = (ROOT / ".ci/run").read_text()
    beside = re.findall(r"^  step ([a-z].*)$", script, re.MULTILINE)
    targets = " ".join(re.findall(r"^for target in (.*); do$", script, re.MULTILINE))
    assert targets.split() == ["test", "test-elsewhere", "test-networks", "test-frameworks"]
    assert beside == ["types", "docs", "environments"]
    blocks = re.findall(r"```(?:sh|bash)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [line.split("#")[0].strip() for line in blocks[0].splitlines() if "make" in line] == [
        "make sweep",
        "make test",
    ]


def test_make_has_the_targets_that_the_pages_name():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    targets = {name for page in pages for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert {"sweep", "test", "lab", "figures", "hook", "literature", "lint"} <= targets
    for target in targets:
        ran("make", "-n", target)


def test_jupyterlab_serves_the_project_and_opens_the_overview():
    (line,) = (line for line in ran("make", "-n", "lab").stdout.splitlines() if "jupyter lab" in line)
    command = shlex.split(line.split("jupyter lab")[1])
    options = dict(option.removeprefix("--").split("=") for option in command)
    assert (ROOT / options["ServerApp.root_dir"]).samefile(ROOT)
    assert (ROOT / options["LabApp.default_url"].removeprefix("/lab/tree/")).is_file()


def test_no_address_of_a_registry_and_no_folder_of_a_machine_is_committed(tmp_path):
    files = tracked_files(tmp_path)
    assert len(files) > 20
    forbidden = re.compile(
        rb"--index-url|--extra-index|find-links|file:///|https?://(?!(www\.)?(apache|github|doi|arxiv)\b)[\w.-]+:\d+"
    )
    for name in files:
        path = ROOT / name
        if path.is_file() and name != "tests/test_setup.py":
            assert not forbidden.search(path.read_bytes()), name
