"""Recordings compared with published figures: sides, texts and figures for rows with given times."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from matplotlib.lines import Line2D

from lstm_literature import implementations, metrics, published, sides
from lstm_literature.pictures import OTHER, bars, color_of, costs, over_size, table_of
from lstm_literature.sides import Side, SideEntry
from lstm_literature.workloads import VARIANTS, WORKLOADS
from lstm_trt.config.errors import UsageError
from tests.support.pictures import assert_nothing_is_cut_off, assert_readable, lines, text_of

PTB = WORKLOADS["ptb-lm"]


def row(implementation: str, value: float | None, workload=PTB, mode: str = "forward", **more) -> SimpleNamespace:
    """One figure as in `metrics.table`; by default the document's main statistic."""
    statistic, unit = metrics.LEADING[workload.document]
    fields = {
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
        "title": sides.title_of(implementation, ""),
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
        "drift": 0.0 if value is not None else None,
    }
    fields |= more
    return SimpleNamespace(**fields, seconds=published.seconds(fields["value"], fields["unit"]))


def side(name: str, **times: float | None) -> Side:
    entries = tuple(
        SideEntry(key.replace("_", "-"), key.upper(), value, "ok" if value else "failed", "" if value else "out of mem")
        for key, value in times.items()
    )
    return Side(name, "a machine", "a size", entries)


def test_todays_side_has_the_median_round_and_failures():
    rows = [row("onnxruntime", value, round=number) for number, value in enumerate((0.3, 0.1, 0.2))]
    rows += [row("tvm-tuned", None), row("pytorch-one-call-eager", 0.1), row("onnxruntime", 9.0, mode="training")]
    rows += [row("onnxruntime", 7.0, statistic="elapsed"), row("onnxruntime", 5.0, VARIANTS["stack"][0])]
    (found,) = sides.today(rows, PTB, "forward")
    assert [(entry.implementation, entry.seconds, entry.reason) for entry in found.entries] == [
        ("onnxruntime", 0.2, ""),
        ("tvm-tuned", None, "out of mem"),
        ("pytorch-one-call-eager", 0.1, ""),
    ]
    assert [found.ratio(entry) for entry in found.ranked] == [1.0, 2.0]
    assert found.name == "today" and {entry.n for entry in found.entries} == {10} and found.machine == "a CPU, 1 thread"
    assert "n = 10 batches" in sides.source_text([found])


def test_the_recording_with_the_most_batches_represents_an_implementation():
    rows = [row("onnxruntime", 0.1, n=5), row("onnxruntime", 0.3, n=50), row("onnxruntime", None, n=0)]
    rows += [row("onnxruntime", value, n=50, round=number) for number, value in ((1, 0.2), (2, 0.4))]
    (found,) = sides.today([*rows, row("tvm-tuned", 0.1, n=5)], PTB, "forward")
    assert [(entry.implementation, entry.seconds) for entry in found.entries] == [
        ("onnxruntime", 0.3),
        ("tvm-tuned", 0.1),
    ]
    assert "n = 5 to 50 batches" in sides.source_text([found])
    assert "n = 50 batches" in sides.source_text([found.only(["onnxruntime"])])
    assert sides.chosen([row("onnxruntime", None, n=0)]).reason == "out of mem"


def test_a_scaled_recording_belongs_to_its_variant():
    small = PTB.scaled("1/8")
    rows = [row("onnxruntime", 0.1, small, published_batch=PTB.batch, published_sequence=PTB.sequence)]
    (found,) = sides.today(rows, PTB, "forward")
    assert "1/8" in found.name
    assert found.size.startswith(f"batch {small.batch}, sequence {small.sequence}, 1/8 ")
    both = sides.today([*rows, row("tvm-tuned", 0.2)], PTB, "forward")
    assert [(each_side.name, each_side.entries[0].implementation) for each_side in both] == [
        ("today", "tvm-tuned"),
        (found.name, "onnxruntime"),
    ]
    with pytest.raises(UsageError, match="m, other"):
        sides.today([rows[0], SimpleNamespace(**vars(rows[0]) | {"machine": "other"})], PTB, "forward")
    assert sides.today(rows, WORKLOADS["cell"], "forward") == []


def test_a_successor_is_recorded_on_the_network_of_the_program_that_it_takes_the_place_of():
    base, torch7 = VARIANTS["text-classifier"][0], VARIANTS["text-classifier-torch7"][0]
    rows = [row("pytorch-fused-eager", value, network, "training") for value, network in ((8.0, base), (1.0, torch7))]
    rows.append(row("keras-jax", 2.0, base, "training"))
    (found,) = sides.today(rows, base, "training", as_there=True)
    assert times_of(found) == {"pytorch-fused-eager": 1e-3, "keras-jax": 2e-3}
    assert sides.today(rows[:1], base, "training", as_there=True) == []
    assert times_of(sides.today(rows, base, "training")[0])["pytorch-fused-eager"] == 8e-3


def times_of(side: Side) -> dict[str, float | None]:
    return {entry.implementation: entry.seconds for entry in side.entries}


def test_the_document_has_one_side_per_device_with_its_empty_cells():
    cpu, gpu = sides.printed(published.read_document("001"), PTB, "training")
    assert (cpu.name, gpu.name) == ("document 001, CPU", "document 001, GPU")
    assert (cpu.ranked[0].implementation, cpu.ranked[0].seconds) == ("tensorflow-while-graph", 0.92997)
    assert {entry.implementation for entry in cpu.entries if entry.status == "empty"} == {
        f"pytorch-{style}-{execution}" for style in ("fine-grained", "fused") for execution in ("eager", "scripted")
    }
    assert cpu.machine.endswith(", 12 threads") and "threads" not in gpu.machine
    assert [entry.implementation for entry in cpu.entries if entry.doubt] == ["tensorflow-while-graph"]
    assert any("? is doubtful" in note for note in cpu.notes) and not gpu.ranked[0].doubt


def test_a_program_with_another_network_has_a_side_of_its_own():
    rows = published.read_document("002")
    (every,) = sides.printed(rows, VARIANTS["text-classifier"][1], "training")
    assert any("MXNet" in note for note in every.notes) and 0.4902 in times_of(every).values()
    (own,) = sides.printed(rows, VARIANTS["text-classifier-torch7"][1], "training")
    assert own.entries[0].doubt and times_of(own).keys() == {"torch7"}


def test_further_sources_are_sides_of_their_own_after_the_documents():
    document, both = (
        sides.printed(found, PTB, "forward") for found in (published.read_document("001"), published.of("001"))
    )
    assert both[: len(document)] == document
    later = {found.name: found for found in both[len(document) :]}
    sources = ("lcy-seso/Carrot e8aebd8 (later revision of 001)", "lcy-seso/Carrot 0824b06 (newest revision of 001)")
    assert list(later) == [f"{source}, {device}" for source in sources for device in ("CPU", "GPU")]
    cpu = later[f"{sources[0]}, CPU"]
    assert len(cpu.ranked) == len(cpu.entries) == 9
    assert times_of(cpu)["tensorflow-fine-grained-eager"] == 1.5050
    assert "096bad5" in str(cpu.notes) and not any("096bad5" in str(found.notes) for found in document)


def test_several_versions_of_an_implementation_have_titles_of_their_own():
    rows = published.of("004")
    (short,) = sides.printed(rows, WORKLOADS["speech-ce-short"], "training")
    titles = {entry.title for entry in short.entries}
    assert len(titles) == len(short.entries) == 12 and sum("0.3.1.post2" in title for title in titles) == 3
    assert (short.ranked[0].implementation, short.ranked[0].seconds) == ("pytorch-one-call-eager", 0.011)
    assert "read from a picture" in str(short.notes)
    own, times = sides.printed(rows, WORKLOADS["speech-ctc-long"], "training")
    assert [entry.reason for entry in own.entries] == ["not carried out"] and len(times.ranked) == 3
    *_, old = sides.printed(rows[rows.framework_version == "0.2.0_4"], WORKLOADS["speech-ce-short"], "training")
    styles = ("one-call", "fused", "basic")
    assert [entry.implementation for entry in old.ranked] == [f"pytorch-{style}-eager" for style in styles]


#: Times today of what took 1, 2 and 4 s in the document -> what is said of the pairs, and the fastest today.
ORDERS = {
    "all faster": ({"a": 0.1, "b": 0.2, "c": 0.4}, ["Pairs: 3 in the same order."], "A"),
    "all slower": ({"a": 10.0, "b": 20.0, "c": 40.0}, ["Pairs: 3 in the same order."], "A"),
    "all reversed": (
        {"a": 4.0, "b": 2.0, "c": 1.0},
        [
            "Pairs: 3 in the reverse order.",
            "Faster in then, slower in the recordings of today: A than B; A than C; B than C.",
        ],
        "C",
    ),
    "mixed": (
        {"a": 3.0, "b": 1.0, "c": 3.1},
        [
            "Pairs: 1 in the same order, 1 in the reverse order, 1 tied (within 10 %).",
            "Faster in then, slower in the recordings of today: A than B.",
        ],
        "B",
    ),
    "a tie": ({"a": 1.05, "b": 1.0, "c": 1.09}, ["Pairs: 3 tied (within 10 %)."], "B and, within 10 %, A and C"),
    "a tie of the fastest": (
        {"a": 1.0, "b": 1.0999, "c": 4.0},
        ["Pairs: 2 in the same order, 1 tied (within 10 %)."],
        "A and, within 10 %, B",
    ),
    "just no tie": ({"a": 1.0, "b": 1.1001, "c": 4.0}, ["Pairs: 3 in the same order."], "A"),
    "one missing": ({"a": 2.0, "c": 1.0, "new": 0.1}, ["Pairs: 1 in the reverse order.",
                    "Faster in then, slower in the recordings of today: A than C."], "C"),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_as_text(name):
    """Times of different sides are not compared, ties have no order, and nothing is said of what a side lacks."""
    times, lines, fastest = ORDERS[name]
    then, now = side("then", a=1.0, b=2.0, c=4.0, gone=1.0), side("today", **times)
    found = sides.then_and_now("a step", then, [now])
    first, *others = str(found).splitlines()
    common = len(times) - ("new" in times)
    slowest = "C" if common == 2 else "the slowest, C"
    beginning = f"a step: then {'A' if common == 2 else 'the fastest of 3, A,'} was 4.00 times as fast as {slowest} "
    assert first.startswith(f"{beginning}(a machine; a size); now ") and first.endswith(
        f" (a machine; a size). {lines[0]}"
    )
    assert others == lines[1:] and found.sentence == first
    assert found.both[1].fastest_text == fastest
    picture = bars([now], "A title")
    wanted = "NEW" if "new" in times else fastest
    assert f"Fastest: today: {wanted} (" in picture.summary


def test_the_ratio_of_each_side_is_its_own():
    """A doubtful time is named as such; of several sides of today the one with most in common is compared."""
    then, now = side("then", a=1.0, b=3.0), side("today", a=0.02, b=0.01, new=9.0)
    doubted = replace(then, entries=(then.entries[0], replace(then.entries[1], doubt="a reason")))
    found = sides.then_and_now("a step", doubted, [side("at scale 1", a=7.0), now, side("at scale 1/8", a=1.0, b=9.0)])
    assert found.sentence == (
        "a step: then A was 3.00 times as fast as B (doubtful) (a machine; a size); now B is 2.00 times as fast as A"
        " (a machine; a size). Pairs: 1 in the reverse order."
    )
    assert [entry.implementation for entry in found.now.entries] == ["a", "b"]


@pytest.mark.parametrize(
    ("today", "start"),
    [
        ({"a": 1.0, "b": None, "x": 0.1}, "then and today have 1 implementation in common; a ratio needs two."),
        ({"x": 1.0}, "then and today have no implementations in common; a ratio needs two."),
        ({"a": None}, "then and today have no implementations in common; a ratio needs two."),
    ],
)
def test_a_ratio_needs_two_implementations_in_both(today, start):
    then = side("then", a=1.0, b=2.0)
    assert str(sides.then_and_now("a step", then, [side("today", **today)])) == f"a step: {start}"
    nothing = sides.then_and_now("a step", then, [])
    assert nothing.sentence.startswith("a step: then and the recordings have no implementations in common")


def test_a_published_implementation_is_beside_its_nearest_successor_that_was_recorded():
    then = side("then", tvm=4.0, cudnn=1.0)
    now = side("today", **{"tvm-tuned": 2.0, "tvm-untuned": 9.0, "pytorch-one-call-eager": 1.0})
    found = sides.then_and_now("a cell", then, [now])
    assert [(entry.implementation, entry.title) for entry in found.then.entries] == [
        ("tvm-untuned", "TVM"),
        ("pytorch-one-call-eager", "CUDNN"),
    ]
    assert "now PYTORCH-ONE-CALL-EAGER is 9.00 times as fast as TVM-UNTUNED" in found.sentence
    tuned = sides.then_and_now("a cell", then, [now.only(("tensorrt", "pytorch-one-call-eager", "tvm-tuned"))])
    assert "now PYTORCH-ONE-CALL-EAGER is 2.00 times as fast as TVM-TUNED" in tuned.sentence


def test_many_reversed_pairs_are_counted():
    many = {f"n{number}": float(number) for number in range(1, 7)}
    text = str(
        sides.then_and_now("a step", side("then", **many), [side("today", **{name: 1 / s for name, s in many.items()})])
    )
    counts, last = text.splitlines()
    assert counts.endswith(" Pairs: 15 in the reverse order.")
    assert last.count(";") == sides.MOST_PAIRS and last.endswith("; and others.")


def test_every_published_implementation_is_one_of_this_package_or_has_a_successor():
    names = {
        (document, row.implementation)
        for document in ("000", "001", "002", "004")
        for row in published.of(document).itertuples()
        if row.statistic in published.TYPICAL
    }
    own = set(implementations.names())
    assert {name for name in names if name[1] not in own} == set(sides.SUCCESSORS)
    assert sides.successors("002")["keras-theano"] == ("keras-jax", "keras-torch")
    assert set(sides.successors("000")) == {"tvm", "cudnn"} and sides.successors("001") == {}
    assert all(set(names) <= own for names in sides.SUCCESSORS.values())
    assert sides.successors_of("theano") == ("pytensor-scan",) and sides.successors_of("jax-scan") == ("jax-scan",)


def test_bars_show_time_and_ratio_and_failures():
    picture = bars([side("then", a=0.5, b=None), side("today", c=0.002, d=0.005)], "A title")
    written = text_of(picture)
    for wanted in ("500 ms   1×", "2.00 ms   1×", "5.00 ms   2.50×", "out of mem", "then", "today", "A title"):
        assert wanted in written, wanted
    assert sorted(line.get_xdata()[0] for line in lines(picture, marker="o")) == pytest.approx([2, 5, 500])
    assert len(lines(picture, marker="x")) == 1  # the failure
    assert not any(ax.patches for ax in picture.axes)  # a bar has no zero on a log axis


def test_a_doubtful_figure_has_a_question_mark():
    then = side("then", a=0.5, b=0.6)
    doubted = replace(then, entries=(replace(then.entries[0], doubt="a reason"), then.entries[1]))
    written = text_of(bars([doubted], "A title"))
    assert "500 ms   1× ?" in written and "1.20× ?" not in written
    written = text_of(over_size({128: then, 256: doubted}, {}, "hidden size", "A title"))
    assert [line for line in written.splitlines() if "?" in line] == ["A: 1× from 128 to 256 ?"]


@pytest.mark.parametrize(
    "draw", [lambda sides: bars(sides, "A title"), lambda sides: costs([row("onnxruntime", 1.0)], "A title")]
)
def test_nothing_to_draw_is_an_error(draw):
    with pytest.raises(UsageError):
        draw([Side("x", "", "", ())])


def run_markers(picture) -> dict[str, tuple[str, str]]:
    """Label in the legend -> marker and how it is filled."""
    entries = [(text.get_text(), line) for legend in picture.subfigs[1].legends
               for text, line in zip(legend.get_texts(), legend.legend_handles, strict=True)]  # fmt: skip
    return {label: (line.get_marker(), line.get_fillstyle()) for label, line in entries if isinstance(line, Line2D)}


def drawn_markers(picture) -> list[tuple[str, str]]:
    return [(line.get_marker(), line.get_fillstyle()) for line in lines(picture)]


def test_forward_training_and_scaled_runs_have_their_own_markers():
    four = [replace(side(f"{mode} {scaled}", a=0.01), mode=mode, scaled=scaled)
             for mode in ("forward", "training") for scaled in (False, True)]  # fmt: skip
    picture = bars(four, "A title")
    found = run_markers(picture)
    assert len(set(found.values())) == len(found) == 4
    modes = ("forward pass", "forward pass, scaled down", "training step", "training step, scaled down")
    assert drawn_markers(picture) == [found[label] for label in modes]


def test_costs_of_forward_training_and_scaled_runs_have_their_own_markers():
    whole = [row("onnxruntime", 2.0, statistic="build", unit="s", mode=mode) for mode in ("forward", "training")]
    picture = costs([*whole, row("tvm-tuned", 9.0, PTB.scaled("1/8"), statistic="tuning", unit="s")], "A title")
    found = run_markers(picture)
    assert found.keys() == {"forward pass", "training step", "forward pass, scaled down"}
    assert len(set(drawn_markers(picture))) == 3 and set(drawn_markers(picture)) == set(found.values())
    assert all(name in text_of(picture) for name in ("build", "tuning", "ONNX Runtime"))
    assert_readable(picture)


def test_document_001_names_its_own_kernels():
    """Today's is another one."""
    (gpu,) = [side for side in sides.printed(published.read_document("001"), PTB, "forward") if "GPU" in side.name]
    titles = {entry.implementation: entry.title for entry in gpu.entries}
    name = "tensorflow-one-call-graph"
    assert titles[name] == "TensorFlow CuDNN LSTM, graph" and "CuDNN LSTM" not in sides.title_of(name, "")


def test_lines_over_a_size_show_growth_and_failures():
    then = {128: side("then", a=0.1, b=0.2), 256: side("then", a=0.4, b=None)}
    picture = over_size(then, {128: side("today", a=0.01)}, "hidden size", "A title")
    assert all(text in text_of(picture) for text in ("A: 4.00× from 128 to 256", "B: 200 ms", "mem 1"))
    assert_readable(picture)


def test_a_side_without_entries_has_no_panel():
    then = {128: side("then", a=0.1)}
    assert len(over_size(then, {128: side("today")}, "hidden size", "A title").axes) == 1
    with pytest.raises(UsageError, match="nothing to draw"):
        over_size({}, {128: side("today")}, "hidden size", "A title")


def test_a_table_of_shapes_keeps_the_sides_apart():
    picture = table_of([("first", side("then", a=0.1, b=None), side("today", a=0.01)), ("none", None, None)], "A title")
    written = text_of(picture)
    assert all(text in written for text in ("document: A", "today: A", "out of mem")) and "none" not in written
    assert_nothing_is_cut_off(picture)


def test_a_framework_has_one_colour_for_all_its_names():
    assert color_of("tvm") == color_of("tvm-tuned") != color_of("tensorflow") == color_of("tensorflow-xla")
    assert color_of("torch7") == color_of("pytorch-basic-eager") != color_of("tensorflow")  # its successor
    assert color_of("nobody") == OTHER not in {color_of("tvm"), color_of("tensorflow"), color_of("tensorrt")}
