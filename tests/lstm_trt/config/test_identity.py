"""Ids are stable: stored ids equal those computed today, and a field that is added later changes none."""

from __future__ import annotations

import hashlib
import json
from dataclasses import field, fields, make_dataclass

import pytest

from lstm_literature.workloads import WORKLOADS
from lstm_trt.config.configuration import Configuration, Options, Protocol, canonical_json
from lstm_trt.config.errors import UnknownConfiguration
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.step import Step
from lstm_trt.config.workload import ADDED, known_fields
from tests.conftest import ROOT

FOLDERS = sorted(path.parent for path in (ROOT / "data" / "epyc").glob("*/configs.parquet"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_shipped_id_is_that_of_its_configuration(folder):
    import pyarrow.parquet as pq

    rows = pq.read_table(folder / "configs.parquet", columns=["config_id", "configuration"]).to_pylist()
    assert rows
    for row in rows:
        stored = json.loads(row["configuration"])
        configuration = Configuration.from_dict(stored)
        assert configuration.id == row["config_id"] == hashlib.sha256(canonical_json(stored).encode()).hexdigest()
        assert configuration.as_dict() == stored


def later(part, metadata=ADDED, **values):
    """`part` in a later version, whose class has another field, `of_tomorrow`, with a default."""
    further = ("of_tomorrow", str, field(default="as ever", metadata=metadata))
    kind = make_dataclass(type(part).__name__, [further], bases=(type(part),), frozen=True)
    return kind(**{item.name: getattr(part, item.name) for item in fields(part)}, **values)


PARTS = {
    "options": Options(cores=(1,), device="cpu"),
    "protocol": Protocol(trials=7, arrival="periodic", period_us=50),
    "shape": LstmShape(2, 8, 4),
    "literature": WORKLOADS["speech-ctc-long"],
    "step": Step("package.module:make_step"),
}


def id_with(part) -> str:
    name = {"Options": "options", "Protocol": "protocol"}.get(type(part).__name__, "workload")
    parts = {"workload": PARTS["shape"], "options": PARTS["options"], "protocol": PARTS["protocol"], name: part}
    return Configuration(runtime="onnxruntime", runtime_version="1", device_name="a processor", **parts).id


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_field_added_later_changes_no_id_where_it_has_its_default(part):
    tomorrow = later(part)
    assert tomorrow.of_tomorrow == "as ever"
    assert canonical_json(tomorrow.as_dict()) == canonical_json(part.as_dict())
    assert id_with(tomorrow) == id_with(part)
    changed = later(part, of_tomorrow="another")
    assert changed.as_dict() == part.as_dict() | {"of_tomorrow": "another"}
    assert id_with(changed) != id_with(part)
    # Without the metadata it would have changed all ids.
    assert id_with(later(part, metadata=None)) != id_with(part)


@pytest.mark.parametrize("part", [PARTS["options"], PARTS["protocol"]], ids=["options", "protocol"])
def test_a_later_version_reads_older_files_and_an_earlier_one_refuses_newer_fields(part):
    plain = json.loads(json.dumps(part.as_dict()))
    assert known_fields(type(later(part)), plain).as_dict() == part.as_dict()
    with pytest.raises(UnknownConfiguration):
        known_fields(type(part), json.loads(json.dumps(later(part, of_tomorrow="another").as_dict())))
