"""Times off the core in a real recording: measured where this machine allows it, else with the reason."""

from __future__ import annotations

import lstm_trt as lab
from lstm_trt.machine.switches import Switches


def test_a_recording_has_times_off_the_core_or_says_why_not(tmp_path):
    with Switches() as own:
        allowed = own.as_dict()
    protocol = lab.Protocol(trials=60, arrival="periodic", period_us=2000.0, wait="os")
    recording = lab.record(lab.LstmShape(1, 8, 4), "onnxruntime", protocol, out=tmp_path)
    told, columns = recording.provenance["switches"], recording.columns
    # An ordinary user's memory for rings is shared with other processes: what is allowed here may be used up there.
    assert told["missing"] in (allowed["missing"], "the memory for rings is used up (perf_event_mlock_kb)")
    names = {"preempted_ns", "off_core_ns", "switches_out"}
    assert names <= columns.keys() if told["missing"] is None else not names & columns.keys()
    if told["missing"] is None:
        end = columns["intended_ns"] + columns["latency_ns"]
        assert (columns["off_core_ns"] <= end - columns["start_ns"]).all()
        assert (columns["preempted_ns"] <= columns["off_core_ns"]).all() and told["threads"] >= 1
        assert recording.control["off_core_ns"].sum() > 0  # an empty step that waits by the timer wakes after it is due
    else:
        assert "off_core_ns" not in recording.control
    blocks = recording.provenance["blocks"]
    assert all(block["runnable_ns"] is None or block["runnable_ns"] >= 0 for block in blocks)
    text = str(lab.outliers(tmp_path))
    assert "late wake-up" in text
    assert ("waiting by itself" in text) == (told["missing"] is None)
    assert ("Times off the core were not measured" in text) == (told["missing"] is not None)
