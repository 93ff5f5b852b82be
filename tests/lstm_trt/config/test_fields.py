"""A field of options, and a fact in recordings, are declared in one place: what reads them finds one that was added."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.fields import Tells, about
from lstm_trt.config.shape import LstmShape
from lstm_trt.store.provenance import facts
from tests.conftest import ROOT
from tests.support.packages import copy_packages

DECLARED = """    reduce_range: bool ="""
ADDED = """    paint: str = described(
        "plain", help="colour of the network", choices=("plain", "red"), heading="colour", added=True
    )
"""

#: A line of the table of facts, and of what the recorder states.
FACT = 'peak_memory_bytes: Annotated[int | None, Fact(joins.largest, "peak_memory_bytes", "peak memory", bytes_text)]'
STATED = """"peak_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,"""

#: Run in one process, since the start of each takes a second.
SCRIPT = """
import contextlib, io, json
from dataclasses import replace
from pathlib import Path
import lstm_trt as lab
from lstm_trt.cli.main import main
from lstm_judge.read.labels import record_command
from lstm_trt.store import files

def text(line):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(line.split())
    return out.getvalue()

record = "record --layers 1 --hidden 8 --sequence 4 --trials 20 --no-control --out out"
text(record)
text(record + " --paint red")
text(record.replace("--trials 20", "--for 1").replace("--out out", "--out soak"))
first = files.read(next(Path("soak").glob("*.parquet")))
peak = first.provenance["peak_memory_bytes"]
second = {**first.provenance, "peak_memory_bytes": peak + 1, "soak": {**first.provenance["soak"], "part": 1}}
files.write(replace(first, part=1, provenance=second), Path("soak"))
(red,) = lab.load("out", paint="red")
print(json.dumps({
    "help": text("record --help"),
    "json": text("summarize out --format json"),
    "table": text("summarize out"),
    "verdict": text("verdict out --deadline-us 1000000"),
    "command": record_command(red.configuration, "again"),
    "provenance": list(lab.load("out").recordings[0].provenance),
    "peaks": [recording.provenance["peak_memory_bytes"] for recording in lab.load("out").recordings],
    "csv": text("summarize out --format csv"),
    "peak": peak,
    "joined": json.loads(text("summarize soak --format json"))[0],
}))
"""


def test_every_field_says_what_it_is():
    for kind in (LstmShape, Options, Protocol):
        for field in about(kind).values():
            assert field.heading and isinstance(field.tells, Tells), field
    assert {name for name, field in about(Options).items() if field.flag is None} == {
        *("cores", "device_index", "reduce_range")
    }
    assert about(Options)["io_binding"].flag == "--no-io-binding" and about(Protocol)["period_us"].unit == "us"


def add_before(line: str, added: str, files: list[Path]) -> None:
    """Add a text before the only line of these files that begins as `line`, at its indentation."""
    pattern = re.compile(rf"^( *){re.escape(line.strip())}", re.MULTILINE)
    (file,) = (file for file in files if pattern.search(file.read_text()))
    source, count = pattern.subn(lambda found: f"{found[1]}{added.strip()}\n{found[0]}", file.read_text())
    assert count == 1
    file.write_text(source)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> dict:
    """What commands print with a copy of the packages in which a field and a fact were added by their recipes."""
    folder = tmp_path_factory.mktemp("added")
    copy_packages(folder, "__pycache__")
    package = folder / "lstm_trt"
    stated_in, declared_in = list((package / "recorder").glob("*.py")), [package / "store" / "provenance.py"]
    for line, added, files in (
        (DECLARED, ADDED, [package / "config" / "configuration.py"]),
        ("started_unix_ns:", FACT, declared_in),
        ("from collections", "from lstm_trt.config.format import bytes_text", declared_in),
        ('"telemetry": telemetry(),', STATED, stated_in),
        ("from lstm_trt.config.libraries import telemetry", "import resource", stated_in),
    ):
        add_before(line, added, files)
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.heavy
def test_a_fact_is_added_in_one_place(texts):
    """JSON, CSV and the table of `summarize` have it, and a soak the largest of its parts."""
    peaks = set(texts["peaks"])
    assert min(peaks) > 2**20
    assert {row["facts"]["peak_memory_bytes"] for row in json.loads(texts["json"])} == peaks
    assert set(pd.read_csv(io.StringIO(texts["csv"]))["peak_memory_bytes"]) == peaks
    assert "peak memory" in texts["table"] and " MB" in texts["table"]
    assert texts["joined"]["facts"]["peak_memory_bytes"] == texts["peak"] + 1


@pytest.mark.heavy
def test_a_field_is_added_in_one_place(texts):
    """A line in `Options` is a flag, and part of id, label, JSON, summary and printed command."""
    assert "colour of the network (default plain)" in " ".join(texts["help"].split())
    rows = json.loads(texts["json"])  # in the order of their ids, which depend on the core
    assert len(rows) == 2 and [row["group"]["paint"] for row in rows if "paint" in row["group"]] == ["red"]
    header, *rows = texts["table"].splitlines()[2:]
    assert "colour" in header and sum(" red " in row for row in rows) == sum(" plain " in row for row in rows) == 1
    assert "colour red" in texts["verdict"]
    assert texts["command"].endswith("--paint red --trials 20 --out again")
    documented = (ROOT / "docs" / "file-format.md").read_text()
    assert set(texts["provenance"]) - facts().keys() == {"network_sha256", "peak_memory_bytes"}
    assert all(f"`{name}`" in documented for name in facts())


def test_an_id_does_not_change_for_the_default_of_an_added_field():
    configuration = Configuration(LstmShape(1, 8, 4), "onnxruntime", "1", "a processor")
    assert not {name for name, field in about(Options).items() if field.added} & configuration.options.as_dict().keys()
