"""Recordings made beside loads: kept apart, named, and judged by load; what is planted is read back."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from lstm_judge import plots
from lstm_judge.campaign import load_or_record
from lstm_judge.compare.answer import NotCompared
from lstm_judge.compare.compare import compare
from lstm_judge.outliers.outliers import outliers
from lstm_judge.plots.over_time import _disturbed
from lstm_judge.plots.page import draw_verdicts
from lstm_judge.read.runs import Runs, as_runs, load
from lstm_judge.replay import replay
from lstm_judge.report.html import _maps, page
from lstm_judge.report.report import report
from lstm_judge.report.text import answer
from lstm_judge.report.views import dimensions
from lstm_judge.scaling.scaling import scaling
from lstm_judge.summarize import text as summary
from lstm_judge.summarize.summarize import summarize
from lstm_judge.verdict.text import worst_loads
from lstm_judge.verdict.verdict import verdict
from lstm_trt.config.configuration import Protocol
from lstm_trt.config.errors import UsageError
from lstm_trt.store import files
from lstm_trt.store.schema import Failure, Recording
from tests.lstm_judge.planted_loads import STREAM, of_one_network, planted, used
from tests.lstm_judge.report.conftest import TRIALS
from tests.support.pictures import told

OTHER_COMMAND = {"stream": "stress-ng --stream 4"}
NAME = "1x8-s4-b1 on fast"
#: Load -> the maximum that is planted.
MAX_US = {None: 610, "2 copies of itself": 700, "stream": 4556, "stream on the same core": 900}


@pytest.fixture
def runs() -> Runs:
    return as_runs(of_one_network())


@pytest.fixture
def recorded(tmp_path):
    for each in of_one_network():
        files.write(each, tmp_path)
    return tmp_path


def load_of(group) -> str | None:
    return group.configuration.protocol.beside_text


# Reading


def test_loads_are_kept_apart_and_named_quiet_first(runs):
    assert [load_of(group) for group in runs] == list(MAX_US)
    assert [group.name for group in runs] == [NAME, *(f"{NAME} beside {load}" for load in MAX_US if load)]
    assert [group.group.get("beside") for group in runs] == list(MAX_US)
    assert "load_commands" not in runs[0].group
    assert runs[2].group["load_commands"] == f"stream={STREAM}"


def test_a_load_with_another_command_is_another_one():
    both = as_runs([planted(500, {"stream": STREAM}), planted(700, OTHER_COMMAND)])
    assert [group.n for group in both] == [TRIALS - 10] * 2
    assert sorted(group.name for group in both) == [
        f"{NAME} beside stream, load commands stream={STREAM}",
        f"{NAME} beside stream, load commands stream=stress-ng --stream 4",
    ]
    header, rows = summary.cells(summarize(both))
    place = header.index("load commands")
    assert {row[place] for row in rows} == {f"stream={STREAM}", "stream=stress-ng --stream 4"}


def test_arrivals_and_loads_are_named_once_each():
    period = {"arrival": "periodic", "period_us": 1000.0}
    asked = [planted(500, {"stream": STREAM}), planted(600, {"stream": STREAM}, protocol=period)]
    assert sorted(group.name for group in as_runs(asked)) == [
        f"{NAME} beside stream, closed",
        f"{NAME} beside stream, periodic every 1000 us (spin)",
    ]


@pytest.mark.parametrize(
    ("asked", "max_us"),
    [
        ({"beside": "stream"}, [4556]),
        ({"beside": None}, [610]),
        ({"beside": "quiet"}, [610]),
        ({"beside": ["quiet", "2 copies of itself"]}, [610, 700]),
        ({"beside_on": "same-core"}, [900]),
        ({"beside_on": "other-cores", "beside": "stream"}, [4556]),
        ({"load_commands": "COPIES=2"}, [700]),
    ],
)
def test_recordings_are_selected_by_load(runs, asked, max_us):
    assert [row.statistics["max_us"] for row in summarize(runs.where(**asked))] == max_us


def test_a_command_selects_by_load(recorded, run):
    status, out, errors = run("summarize", recorded, "--where", "beside=stream", "--format", "json")
    assert (status, errors) == (0, "")
    assert '"max_us": 4556.0' in out and out.count('"config_id"') == 2  # of the group and the configuration


# Summaries


def test_summaries_have_the_loads_in_a_column(runs):
    rows = summarize(runs)
    assert [row.configuration.get("beside") for row in rows] == list(MAX_US)
    assert [row.statistics["max_us"] for row in rows] == list(MAX_US.values())
    header, cells = summary.cells(rows)
    assert [line[header.index("beside")] for line in cells] == ["quiet", *list(MAX_US)[1:]]
    assert "load commands" not in header
    read = list(csv.DictReader(io.StringIO(rows.csv_text())))
    assert [row["beside"] for row in read] == ["", *list(MAX_US)[1:]]
    assert [row["beside_on"] for row in read] == ["", "", "", "same-core"]


def test_quiet_recordings_have_no_column_of_loads():
    rows = summarize([planted(610), planted(700, hidden=16)])
    assert "beside" not in summary.cells(rows)[0]
    assert not {"beside", "load_commands", "beside_on", "fifo"} & {*rows.frame.columns}
    assert "beside" not in rows.as_dict()[0]["configuration"]


def test_a_single_recording_says_beside_what_it_was_made(tmp_path):
    path = files.write(planted(4556, {"stream": STREAM}), tmp_path)
    rows = summarize(load(path))
    header, (cells,) = summary.cells(rows)
    assert cells[header.index("beside")] == "stream"


def test_the_priority_belongs_to_the_arrivals():
    often = {"arrival": "periodic", "period_us": 1000.0, "wait": "sleep"}
    rows = summarize([planted(500, protocol=often), planted(400, protocol=often | {"fifo": 80})])
    header, cells = summary.cells(rows)
    texts = {line[header.index("max")]: line[header.index("arrival")] for line in cells}
    assert texts == {"500.0": "1000 us sleep", "400.0": "1000 us sleep, FIFO 80"}
    assert {row.configuration.get("fifo") for row in rows} == {None, 80}


def test_loads_are_systems_of_their_own_in_scaling(runs, tmp_path):
    found = scaling(runs).findings
    assert [*found.times.cells] == ["fast", *(f"fast, beside {load}" for load in list(MAX_US)[1:])]
    table = tmp_path / "summary.csv"
    table.write_text(summarize(runs).csv_text())
    read = scaling(table, column="median_us").findings.times
    assert len(read.cells) == len(MAX_US) and read.counts.duplicates == 0


# Comparisons


def of_versions(version: str, factor: float, loads: list) -> Runs:
    made = []
    for place, each in enumerate(loads):
        recording = planted(300, each, draw=place)
        recording.columns["latency_ns"] = (recording.columns["latency_ns"] * factor**place).astype(np.int64)
        made.append(replace(recording, configuration=replace(recording.configuration, runtime_version=version)))
    return as_runs(made)


def test_a_load_is_compared_with_the_same_load():
    """Of another version: quiet is the same, beside the stream it takes twice as long."""
    loads = [None, {"stream": STREAM}]
    found = compare(of_versions("1.0", 1, loads), of_versions("1.1", 2, loads))
    assert [load_of(both.a) for both, _ in found.items()] == [load_of(both.b) for both, _ in found.items()]
    medians = {load_of(both.b): np.median(both.b.rounds[0].timed_ns) for both, _ in found.items()}
    assert medians[None] == pytest.approx(1e5, rel=0.01) and medians["stream"] == pytest.approx(2e5, rel=0.01)
    (frame_quiet, frame_stream) = found.frame.to_dict("records")
    assert frame_stream["beside"] == "stream" and frame_quiet["beside"] != "stream"


def test_loads_with_other_commands_are_not_paired():
    found = compare(of_versions("1.0", 1, [None, {"stream": STREAM}]), of_versions("1.0", 1, [None, OTHER_COMMAND]))
    alone = [each.reason for each in found if isinstance(each, NotCompared)]
    assert len(found) == 3 and len(alone) == 2
    assert next(both for both, _ in found.items() if both.on_both_sides).b.name == NAME


def test_two_single_loads_are_compared_and_the_difference_is_said():
    (found,) = compare([planted(300, {"stream": STREAM})], [planted(300, OTHER_COMMAND, draw=1)])
    assert "load commands: stream=stress-ng --stream 1 -> stream=stress-ng --stream 4" in found.differences
    (found,) = compare([planted(300)], [planted(300, {"stream": STREAM}, draw=1)])
    assert "beside: none -> stream" in found.differences


def test_what_a_whole_side_ran_beside_is_said_before_the_comparisons():
    quiet = [planted(300, hidden=hidden) for hidden in (8, 16)]
    beside = [planted(300, {"stream": STREAM}, hidden=hidden, draw=1) for hidden in (8, 16)]
    found = compare(quiet, beside)
    assert found.pairs.differ["beside"] == (None, "stream")
    assert str(found).startswith("beside: quiet in A, stream in B\n")
    assert len(found) == 2 and all(both.on_both_sides for both, _ in found.items())


# Verdicts


def test_the_worst_load_is_named_by_its_maximum(runs):
    found = verdict(runs, 5000, percentile="99")
    line = (
        f"{NAME}, worst beside stream: max 4556.0 us, MET (beside stream on the same core: max 900.0 us, MET;"
        " beside 2 copies of itself: max 700.0 us, MET; quiet: max 610.0 us, MET)"
    )
    assert list(worst_loads(found)) == [line]
    assert line in str(found).splitlines() and line in found.conclusion.splitlines()


def test_each_load_has_its_own_outcome():
    """Half of the calls beside the stream miss the deadline."""
    slow = planted(4556, {"stream": STREAM})
    slow.columns["latency_ns"][::2] *= 3
    found = verdict([planted(120), slow], 150, percentile="99")
    (line,) = worst_loads(found)
    assert line == f"{NAME}, worst beside stream: max 13668 us, MISSED (quiet: max 120.0 us, MET)"


def test_the_slowest_networks_are_first():
    recorded = []
    for hidden in range(8, 15):
        recorded += [planted(100 * hidden, {"stream": STREAM}, hidden=hidden), planted(200, hidden=hidden)]
    lines = list(worst_loads(verdict(recorded, 1000)))
    assert [line.split(",")[0] for line in lines] == [f"1x{hidden}-s4-b1 on fast" for hidden in range(14, 9, -1)]
    assert "worst beside stream: max 1400.0 us" in lines[0]


def failed(like: Recording) -> Failure:
    return Failure(like.configuration, 0, "run", "the load ended", like.provenance)


def made_slower(like: Recording) -> Recording:
    like.columns["latency_ns"] *= 100
    return like


@pytest.mark.parametrize(
    ("spoilt", "largest"),
    [(lambda made: made, f"{NAME.replace('8', '16', 1)} beside stream"), (made_slower, NAME), (failed, NAME)],
)
def test_the_largest_network_that_meets_a_deadline_does_beside_all_of_its_loads(spoilt, largest):
    """The larger of two has a load, beside which it meets the deadline, misses it, or could not be recorded."""
    larger = [planted(200, hidden=16), spoilt(planted(900, {"stream": STREAM}, hidden=16))]
    found = verdict(as_runs([planted(300), *larger]), 1000, percentile="99")
    assert found.runs[found.largest()].name == largest
    assert f"Largest network that met it: {largest}, " in found.conclusion
    # A system of a report is one load: each row says what holds for it alone.
    systems = {row[0]: row[-1] for row in report(found.runs, 1000, percentile="99").overview[1]}
    assert systems["fast"].startswith("1x16-s4-b1 (")


def test_a_load_that_failed_is_named_last(tmp_path):
    found = verdict(as_runs([planted(300), failed(planted(900, {"stream": STREAM}))]), 1000, percentile="99")
    assert list(worst_loads(found)) == [f"{NAME}, worst quiet: max 300.0 us, MET (beside stream: failed)"]
    picture = draw_verdicts(found.runs, found, tmp_path)
    assert len(picture) == 2 and not list(tmp_path.glob("verdict-loads*"))


@pytest.mark.parametrize(
    "other",
    [
        {"hidden": 16},
        {"runtime": "slow"},
        {"trials": 389},
        {"precision": "fp16"},
        {"protocol": {"arrival": "paused", "pause_ms": 1.0}},
    ],
)
def test_loads_of_unlike_recordings_are_not_compared(other):
    assert not list(worst_loads(verdict([planted(610), planted(700, {"stream": STREAM}, **other)], 1000)))


def test_a_report_shows_the_worst_load_and_what_ran(runs):
    found = report(runs, 650)
    (line,) = worst_loads(found.verdicts)
    assert answer(found)[1] == line and "max 4556.0 us" in line
    written = page(found)
    assert "worst beside stream: max 4556.0" in written and "stress-ng-strea (load)" in written


def test_the_maps_of_a_report_have_a_panel_for_each_load_and_what_it_ran():
    """Of loads with one name and several commands each has its own; without loads none is named."""
    loads = [{}, {"stream": STREAM}, OTHER_COMMAND, {"COPIES": "1"}]
    of_each = {}
    for hidden in (8, 16):
        for beside in loads:
            of_each[hidden, *beside.items()] = planted(500 + len(of_each), beside, hidden=hidden)
    found = report(as_runs(of_each.values()), 600)
    maps = _maps(found)
    assert [*maps["systems"]] == ["fast"]
    panels = maps["systems"]["fast"]
    titles = ["quiet", "beside a copy of itself", "beside stream", "beside stream"]
    assert [panel["title"] for panel in panels] == titles
    for panel, beside in zip(panels, ({}, {"COPIES": "1"}, {"stream": STREAM}, OTHER_COMMAND), strict=True):
        ((_, places),) = panel["rows"]
        shown = [found.runs[place].configuration for place in places]
        asked = [of_each[hidden, *beside.items()].configuration for hidden in (8, 16)]
        assert shown == asked and panel["columns"] == [8, 16]
    quiet = _maps(report(as_runs([planted(500), planted(600, hidden=16)]), 600))
    assert [panel["title"] for panel in quiet["systems"]["fast"]] == [""]


def test_a_baseline_is_compared_load_by_load(runs):
    """B takes twice as long beside the stream, and has no copies."""
    slower = of_one_network()
    slower[0].columns["latency_ns"] *= 2
    found = report(runs, 650, baseline=as_runs([*slower[:1], *slower[2:]]))
    rows = {row[0]: row[1] for row in found.compared[1]}
    assert rows[f"{NAME} beside stream"] != rows[NAME] and f"{NAME} beside 2 copies of itself" not in rows
    assert {load_of(both.a) for both, _ in found.comparisons.items() if both.on_both_sides} == {*MAX_US} - {
        "2 copies of itself"
    }


def test_a_page_to_explore_has_the_loads_as_a_dimension(runs):
    dimension, *_ = (each for each in dimensions(runs) if each.name == "beside")
    assert dimension.texts == ["quiet", *list(MAX_US)[1:]]
    assert [dimension.values[place] for place in dimension.places] == list(MAX_US)
    for value, call in zip(dimension.values, dimension.arguments, strict=True):
        (group,) = eval(f"runs.where({call})", {"runs": runs})
        assert load_of(group) == value


# What ran


def test_processes_of_a_load_are_named_as_such(runs):
    text = str(outliers(runs.where(beside="stream")))
    assert "stress-ng-strea (load) (2 times, 2.00 to 4.00 us)" in text and "kworker/0:1 (1 time, " in text
    assert "(load)" not in str(outliers(runs.where(beside=None)))


@pytest.mark.parametrize(
    ("protocol", "others_ns", "load_ns", "disturbed"),
    [
        ({}, (0, 900_000_000), 900_000_000, False),  # the load alone
        ({}, (0, 900_000_000), 0, True),
        ({}, (60_000_000, 960_000_000), 900_000_000, True),  # another program on the core of the trials
        ({}, (0, 1_500_000_000), 900_000_000, True),  # and elsewhere
        ({"beside_on": "same-core"}, (900_000_000, 900_000_000), 900_000_000, False),
        ({"beside_on": "same-core"}, (960_000_000, 960_000_000), 900_000_000, True),
    ],
)
def test_a_block_is_shaded_only_for_others_than_the_load(protocol, others_ns, load_ns, disturbed):
    """Two blocks of a second each; the load used three times as much in the three seconds of the recording."""
    made = planted(300, {"stream": STREAM}, protocol=protocol)
    (group,) = as_runs([made])
    names = ("others_ns", "others_total_ns")
    blocks = [{"rows": TRIALS // 2, **dict(zip(names, others_ns, strict=True))} for _ in range(2)]
    round_ = replace(
        group.rounds[0],
        start_ns=np.arange(TRIALS) * 5_000_000,
        latency_ns=np.full(TRIALS, 5_000_000.0),
        blocks=blocks,
        loads=[used("stream", STREAM, cpu_ns=load_ns * 3, wall_ns=3 * 10**9)],
    )
    configuration = replace(group.configuration, options=replace(group.configuration.options, cores=(0,)))
    both = [(0, TRIALS // 2 - 1), (TRIALS // 2, TRIALS - 1)]
    assert list(_disturbed(round_, configuration)) == (both if disturbed else [])


# Campaigns and replays


def test_a_campaign_takes_the_loads_that_are_asked_for(recorded):
    grids = [{"layers": (1,), "hidden": (8,), "sequence": (4,)}]

    def found(**protocol) -> list[float]:
        protocols = [Protocol(trials=TRIALS - 10, **protocol)]
        rows = summarize(load_or_record(recorded, grids=grids, runtimes=(), protocols=protocols))
        return [row.statistics["max_us"] for row in rows]

    assert found() == [610]
    assert found(beside={"stream": STREAM}) == [4556]
    assert found(beside={"stream": STREAM}, beside_on="same-core") == [900]
    with pytest.raises(UsageError, match="beside stream"):
        found(beside=OTHER_COMMAND)


def test_a_recording_beside_a_load_is_replayed_as_such(runs):
    found = replay(runs.where(beside="stream"), period_us=200)
    assert found[0].replayed.max_us == 4556 and found[0].queued > 0
    assert f"{NAME} beside stream: " in str(found)


# The picture


def test_the_tails_of_each_load_end_at_its_maximum(runs):
    picture = plots.loads(runs, deadline_us=650)
    lines = [line for line in picture.axes[0].lines if len(line.get_xdata()) > 2]
    assert [line.get_xdata()[-1] for line in lines] == list(MAX_US.values())
    names = [line.get_label().split(":")[0] for line in lines]
    assert names == ["quiet", *(f"beside {load}" for load in list(MAX_US)[1:])]
    assert NAME in picture.alt and "beside stream" in picture.alt and "misses 1 of 390" in told(picture)


def test_the_picture_of_loads_needs_one_network_with_several():
    two = [planted(300 + hidden, load, hidden=hidden) for hidden in (8, 16) for load in (None, {"stream": STREAM})]
    with pytest.raises(UsageError, match="not of 1x8-s4-b1 on fast, 1x16-s4-b1 on fast: select one with where"):
        plots.loads(two)
    with pytest.raises(UsageError, match=r"not of 1x8-s4-b1 on fast beside stream: .* quiet and with --beside"):
        plots.loads(two[1:2])
    assert plots.loads(as_runs(two).where(hidden=8))
