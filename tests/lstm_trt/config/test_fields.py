"""A field is declared in one place: what reads the fields finds one that was added."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lstm_trt.config.configuration import Configuration, Options, Protocol
from lstm_trt.config.fields import Tells, about
from lstm_trt.config.shape import LstmShape
from lstm_trt.store.provenance import PROVENANCE
from tests.conftest import ROOT
from tests.support.packages import copy_packages

DECLARED = """    reduce_range: bool ="""
ADDED = """    paint: str = described(
        "plain", help="colour of the network", choices=("plain", "red"), heading="colour", added=True
    )
"""

#: Run in one process, since the start of each takes a second.
SCRIPT = """
import contextlib, io, json
import lstm_trt as lab
from lstm_trt.cli.main import main
from lstm_trt.config.labels import record_command

def text(line):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(line.split())
    return out.getvalue()

record = "record --layers 1 --hidden 8 --sequence 4 --trials 20 --no-control --out out"
text(record)
text(record + " --paint red")
(red,) = lab.load("out", paint="red")
print(json.dumps({
    "help": text("record --help"),
    "json": text("summarize out --format json"),
    "table": text("summarize out"),
    "verdict": text("verdict out --deadline-us 1000000"),
    "command": record_command(red.configuration, "again"),
    "provenance": list(lab.load("out").recordings[0].provenance),
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


@pytest.mark.heavy
def test_a_field_is_added_in_one_place(tmp_path):
    """In a copy of the packages with one more line in `Options`: flag, id, label, JSON, summary and printed command."""
    copy_packages(tmp_path, "__pycache__")
    file = tmp_path / "lstm_trt" / "config" / "configuration.py"
    source = file.read_text()
    assert source.count(DECLARED) == 1
    file.write_text(source.replace(DECLARED, ADDED + DECLARED))

    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts = json.loads(done.stdout.splitlines()[-1])
    assert "colour of the network (default plain)" in " ".join(texts["help"].split())
    rows = json.loads(texts["json"])  # in the order of their ids, which depend on the core
    assert len(rows) == 2 and [row["group"]["paint"] for row in rows if "paint" in row["group"]] == ["red"]
    header, *rows = texts["table"].splitlines()[2:]
    assert "colour" in header and sum(" red " in row for row in rows) == sum(" plain " in row for row in rows) == 1
    assert "colour red" in texts["verdict"]
    assert texts["command"].endswith("--paint red --trials 20 --out again")
    documented = (ROOT / "docs" / "file-format.md").read_text()
    assert set(texts["provenance"]) - PROVENANCE.keys() == {"network_sha256"}  # that of its kind
    assert all(f"`{name}`" in documented for name in PROVENANCE)


def test_an_id_does_not_change_for_the_default_of_an_added_field():
    configuration = Configuration(LstmShape(1, 8, 4), "onnxruntime", "1", "a processor")
    assert not {name for name, field in about(Options).items() if field.added} & configuration.options.as_dict().keys()
