"""Today beside the published figures: rows with planted times, words held against them, pictures read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lstm_trt.config.errors import UsageError
from lstm_trt.literature import compare, metrics, published
from lstm_trt.literature.compare import Entry, Side
from lstm_trt.literature.plots import OTHER, bars, color_of, costs, over_size, table_of
from lstm_trt.literature.workloads import VARIANTS, WORKLOADS
from lstm_trt.plots.style import png_bytes

PTB = WORKLOADS["ptb-lm"]


def row(implementation: str, value: float | None, workload=PTB, mode: str = "forward", **more) -> metrics.Row:
    """One figure as `metrics.table` gives it: of the document's leading statistic unless told otherwise."""
    statistic, unit = metrics.LEADING[workload.document]
    told = {
        "source": workload.document,
        "workload": workload.name,
        "label": workload.label,
        "scale": workload.scale,
        "shape": "",
        **{name: getattr(workload, name) for name in ("batch", "sequence", "features", "hidden", "layers")},
        "published_batch": workload.batch,
        "published_sequence": workload.sequence,
        "mode": mode,
        "implementation": implementation,
        "title": compare.title_of(implementation, ""),
        "framework": implementation.split("-")[0],
        "framework_version": "9",
        "device": "cpu",
        "hardware": "a CPU",
        "precision": "fp32",
        "threads": 1,
        "statistic": statistic,
        "value": value,
        "unit": unit,
        "status": "ok" if value is not None else "failed",
        "reason": "" if value is not None else "out of mem",
        "detail": "",
        "n": 10,
        "document_n": workload.batches,
        "round": 0,
        "machine": "m",
        "config_id": implementation,
    }
    return metrics.Row(**told | more)


def words(picture) -> str:
    found = [text.get_text() for part in picture.subfigs for text in part.findobj(lambda one: hasattr(one, "get_text"))]
    return "\n".join(found)


def side(name: str, **times: float | None) -> Side:
    entries = tuple(
        Entry(key.replace("_", "-"), key.upper(), value, "ok" if value else "failed", "" if value else "out of mem")
        for key, value in times.items()
    )
    return Side(name, "a machine", "a size", entries)


def test_todays_side_is_the_middle_round_and_keeps_failures():
    rows = [row("onnxruntime", value, round=place) for place, value in enumerate((0.3, 0.1, 0.2))]
    rows += [row("tvm-tuned", None), row("pytorch-one-call-eager", 0.1), row("onnxruntime", 9.0, mode="training")]
    rows += [row("onnxruntime", 7.0, statistic="elapsed"), row("onnxruntime", 5.0, VARIANTS["stack"][0])]
    (found,) = compare.today(rows, PTB, "forward")
    assert [(one.implementation, one.seconds, one.reason) for one in found.entries] == [
        ("onnxruntime", 0.2, ""),
        ("tvm-tuned", None, "out of mem"),
        ("pytorch-one-call-eager", 0.1, ""),
    ]
    assert [found.ratio(one) for one in found.entries] == [2.0, None, 1.0]
    assert "the document's size" in found.size and found.counts == (10,) and "a CPU, 1 thread" in found.where
    assert compare.source_text([found]).endswith("; n = 10 batches.")


def test_a_scaled_recording_belongs_to_its_variant_and_says_so():
    small = PTB.scaled("1/8")
    rows = [row("onnxruntime", 0.1, small, published_batch=PTB.batch, published_sequence=PTB.sequence)]
    (found,) = compare.today(rows, PTB, "forward")
    assert found.name == "today, at 1/8 of the size"
    assert found.size.startswith(f"batch {small.batch}, sequence {small.sequence}, scale 1/8 of the document's")
    both = compare.today([*rows, row("tvm-tuned", 0.2)], PTB, "forward")
    assert [(one.name, one.entries[0].implementation) for one in both] == [
        ("today", "tvm-tuned"),
        (found.name, "onnxruntime"),
    ]
    with pytest.raises(UsageError, match="unlike machine"):
        compare.today([rows[0], replace(rows[0], machine="other")], PTB, "forward")
    with pytest.raises(UsageError, match="record = True"):
        compare.today(rows, WORKLOADS["cell"], "forward")


def test_the_document_is_a_side_a_device_with_its_empty_cells():
    sides = {one.name: one for one in compare.printed(published.load("001"), PTB, "training")}
    assert set(sides) == {"document 001, CPU", "document 001, GPU"}
    cpu = sides["document 001, CPU"]
    assert cpu.ranked[0].implementation == "tensorflow-while-graph" and cpu.ranked[0].seconds == 0.9210
    empty = {one.implementation for one in cpu.entries if one.status == "empty"}
    assert empty == {f"pytorch-{style}-{how}" for style in ("basic", "fused") for how in ("eager", "scripted")}
    classifier = VARIANTS["text-classifier"][1]
    (side,) = compare.printed(published.load("002"), classifier, "training")
    assert side.note.startswith("corrected: MXNet") and {one.seconds for one in side.entries} >= {0.4902}


def test_the_order_is_told_in_words():
    then, now = side("then", a=1.0, b=2.0, c=4.0, gone=1.0), side("today", a=3.0, b=1.0, c=3.1, new=0.1)
    told = compare.order_text(then, now)
    assert told.splitlines() == [
        "Fastest of the 3 that both have: A in then, B today.",
        "B took 2 times as long as A: it is 3 times faster now.",
        "1 of 3 pairs stand in the order in which they stood; 1 lie within 10 %, then or now.",
        "From the fastest to the slowest: 4 times then, 3.1 times today.",
    ]
    assert "No pair has changed places" in compare.order_text(then, then)
    assert "no implementation in common" in compare.order_text(then, side("today", x=1.0))


def test_empty_cells_are_filled_with_todays():
    then = replace(side("then", a=1.0), entries=(Entry("a", "A", 1.0, "ok"), Entry("b", "B", None, "empty"),
        Entry("c", "C", None, "failed", "didn't run"), Entry("d", "D", None, "empty")))  # fmt: skip
    rows = compare.filled(then, side("today", a=1.0, b=2.0, c=None))
    told = [(one["implementation"], one["printed"], one["seconds a batch today"], one["note"]) for one in rows]
    assert told == [
        ("B", "empty", 2.0, ""),
        ("C", "didn't run", None, "out of mem"),
        ("D", "empty", None, "not recorded"),
    ]
    assert rows[0]["times the fastest today"] == 2.0


def test_successors_stand_in_for_what_is_gone():
    found = compare.succeeded_by(side("then", theano=1.0, torch7=2.0), {"torch7": "pytorch-fused-eager"})
    assert [(one.implementation, one.title, one.seconds) for one in found.entries] == [
        ("pytorch-fused-eager", "TORCH7", 2.0)
    ]


def test_bars_show_time_and_ratio_and_failures():
    picture = bars([side("then", a=0.5, b=None), side("today", c=0.002, d=0.005)], "A title")
    told = words(picture)
    for wanted in ("500 ms   1×", "2.00 ms   1×", "5.00 ms   2.50×", "out of mem", "then", "today", "A title"):
        assert wanted in told, wanted
    drawn = [patch for ax in picture.axes for patch in ax.patches]
    assert len([patch for patch in drawn if not patch.get_hatch()]) == 3
    assert len([patch for patch in drawn if patch.get_hatch()]) == 1  # the failure
    assert png_bytes(picture)[:4] == b"\x89PNG"
    with pytest.raises(UsageError, match="nothing to draw"):
        bars([Side("x", "", "", ())], "A title")


def test_lines_over_a_size_tell_growth_and_failures():
    then = {128: side("then", a=0.1, b=0.2), 256: side("then", a=0.4, b=None)}
    picture = over_size(then, {128: side("today", a=0.01)}, "hidden size", "A title")
    told = words(picture)
    assert "A: 4.00× from 128 to 256" in told and "B: 200 ms" in told and "mem 1" in told
    assert png_bytes(picture)[:4] == b"\x89PNG"


def test_a_table_of_shapes_keeps_the_sides_apart():
    picture = table_of([("one", side("then", a=0.1, b=None), side("today", a=0.01)), ("none", None, None)], "A title")
    told = words(picture)
    assert "document: A" in told and "today: A" in told and "out of mem" in told and "none" not in told
    assert png_bytes(picture)[:4] == b"\x89PNG"


def test_a_framework_has_one_colour_by_whatever_name_a_document_prints_it():
    assert color_of("tvm") == color_of("tvm-tuned") != color_of("tensorflow") == color_of("tensorflow-xla")
    assert color_of("theano") == OTHER not in {color_of("tvm"), color_of("tensorflow"), color_of("tensorrt")}


def test_costs_are_drawn_by_kind():
    rows = [row("onnxruntime", value, statistic=name, unit="s") for name, value in (("build", 2.0), ("export", 0.5))]
    told = words(costs(rows, "A title"))
    assert "build" in told and "export" in told and "ONNX Runtime" in told
    with pytest.raises(UsageError, match="no costs"):
        costs([row("onnxruntime", 1.0)], "A title")
