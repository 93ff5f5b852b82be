"""Ids are stable: stored ids equal those computed today, and a field that is added later changes none."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass

import pytest

from lstm_literature.workloads import WORKLOADS
from lstm_trt.config.configuration import Configuration, Options, Protocol, canonical_json
from lstm_trt.config.errors import UnknownConfiguration
from lstm_trt.config.shape import LstmShape
from lstm_trt.config.step import Step
from lstm_trt.config.workload import ADDED, known_fields


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
    assert known_fields(type(later(part)), part.as_dict()).as_dict() == part.as_dict()
    with pytest.raises(UnknownConfiguration):
        known_fields(type(part), later(part, of_tomorrow="another").as_dict())
