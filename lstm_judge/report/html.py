"""A report as one HTML file: the answer first, tables, heat maps and curves, and a script for the
rest.

Everything is in the file, no address in it is loaded, and a Content-Security-Policy forbids it. The
script only shows what was computed here. Names come from recordings: Jinja2 escapes each, and
control characters are shown.
"""

import math
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from lstm_judge.outcomes import Outcome
from lstm_judge.plots import points as data
from lstm_judge.plots.heatmap import MAP_AXES, short
from lstm_judge.plots.precision import precisions
from lstm_judge.plots.style import THIN_SPACE, Picture, image_bytes, with_micro
from lstm_judge.plots.tail import choose_tails, tails
from lstm_judge.read.labels import record_command
from lstm_judge.read.rounds import Group
from lstm_judge.statistics.trials import Trials
from lstm_judge.summarize import text as summary
from lstm_trt.config.format import NUMBER, frame_cells, latency, listed, short_number

#: Most curves that are drawn without the script, and points of those that it draws per power of
#: ten.
MOST_CURVES, CURVE_POINTS = 6, 8

#: Columns of the summary that a narrow terminal drops before this one are in its CSV only.
LESS_DROP = 6

#: Verdict, or that there is none -> class of its cells.
CLASSES = dict(zip((*map(str, Outcome), "failed"), "mxnf", strict=True))

Table = dict[str, Any]


def page(report: Any) -> str:
    """The whole file of a `report.Report`."""
    folder = Path(__file__).parent

    def name(text: object) -> Markup:
        """A name in an element of its own, whatever direction it is written in; a long one is cut."""
        whole, cut = report.shown(text), report.cut(text)
        return Markup("<bdi{}>{}</bdi>").format(
            Markup(' title="{}"').format(whole) if cut != whole else "", cut
        )

    def plain(value: object) -> Any:
        return value if isinstance(value, Markup) else with_micro(report.shown(value))

    options: dict[str, Any] = {
        "autoescape": True,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "finalize": plain,
    }
    environment = Environment(loader=FileSystemLoader(folder), **options)
    environment.filters["name"] = name
    own = {kind: (folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")}
    groups = [group for group in report.runs if group.configuration is not None]
    commands = (
        record_command(group.configuration, "recordings", len(group.rounds) or 1)
        for group in groups
    )
    return environment.get_template("report.html").render(
        report=report,
        own={kind: Markup(text) for kind, text in own.items()},
        hashes={
            kind: b64encode(sha256(text.encode()).digest()).decode() for kind, text in own.items()
        },
        classes=CLASSES,
        overview=_table("s", "", report.overview),
        maps=_maps(report) if len(groups) > 1 else {},
        pictures=[_image(report, picture) for picture in _pictures(report)],
        tables=[table for table in _tables(report) if table["rows"]],
        commands=list(filter(None, commands)),
        data=_data(report),
    )


def _table(
    id: str, title: str, cells: tuple[Sequence[str], Sequence[Sequence[str]]], note: str = ""
) -> Table:
    """A table; `id` begins the ids of its rows, `text` tells which columns are no numbers."""
    header, rows = cells
    columns = zip(*rows, strict=True) if rows else ()
    text = [not all(map(NUMBER.fullmatch, filter(None, column))) for column in columns]
    return {"id": id, "title": title, "note": note, "header": header, "rows": rows, "text": text}


def _tables(report: Any) -> Iterator[Table]:
    first, columns, lines = summary.shown(report.rows)
    kept = [place for place, column in enumerate(columns) if not 0 < column.drop < LESS_DROP]
    header, rows = [columns[place].heading for place in kept], []
    for number, line in enumerate(lines):
        timed = report.runs[number].n
        measured = (
            [line[place] for place in kept]
            if timed
            else [*line[:first], *["-"] * (len(kept) - first)]
        )
        rows.append(
            [*measured[:first], report.outcome(number), *measured[first:], report.remark(number)]
        )
    cells = [*header[:first], "verdict", *header[first:], "remark"], rows
    legends = ("latencies in us after warm-up", *(columns[place].legend for place in kept))
    yield _table("r", "All configurations", cells, "; ".join(filter(None, legends)))
    if report.comparisons:
        yield _table("b", "Compared with the baseline", report.compared)
    yield _table("c", "Clusters of slow and fast calls", frame_cells(report.tails.clusters))
    failed = [
        [group.name, group.failure.stage or "-", group.failure.reason]
        for group in report.runs
        if group.failure
    ]
    yield _table("f", "Failures", (["configuration", "stage", "reason"], failed))
    yield _table(
        "e",
        "Machines, versions and what else ran",
        (["what", "recordings", "value"], _stated(report)),
    )


def _stated(report: Any) -> list[list[str]]:
    """What the recordings state of machines, versions and other programs, and the number of those
    that state it."""
    found: Counter[tuple[str, str]] = Counter()
    for stated in (item.provenance for item in report.runs.recordings):
        facts = {"machine": stated.get("machine_fingerprint"), **(stated.get("machine") or {})}
        facts |= {
            **(stated.get("versions") or {}),
            "alone on the CPU": (stated.get("others") or {}).get("alone"),
        }
        facts["ran while a call was preempted"] = listed(
            (stated.get("switches") or {}).get("ran", ())
        )
        facts["warnings"] = listed(stated.get("warnings", ()))
        found.update(
            (name.replace("_", " "), str(value).strip("{}")) for name, value in facts.items()
        )
    return [
        [*pair[:1], str(n), *pair[1:]]
        for pair, n in found.items()
        if pair[1] not in ("None", "none", "")
    ]


def _maps(report: Any) -> dict[str, Any]:
    """The names of both axes, and of each system its panels: a title, columns, and the places of
    each row's cells."""
    sizes = [
        {axis: size or 0 for axis, size in group.configuration.workload.axes.items()}
        for group in report.runs
    ]
    varied = [axis for axis in MAP_AXES if len({each[axis] for each in sizes}) > 1]
    x, y, *_ = dict.fromkeys((*varied, *MAP_AXES))
    others = [axis for axis in varied if axis not in (x, y)]
    systems: dict[str, list] = defaultdict(list)
    for label, places in report.systems.items():
        panels: dict[tuple, dict[tuple, int]] = defaultdict(dict)
        for place in places:
            panels[tuple(sizes[place][axis] for axis in others)][
                sizes[place][y], sizes[place][x]
            ] = place
        for key, cells in sorted(panels.items()):
            title = ", ".join(
                data.axis_value(axis, size) for axis, size in zip(others, key, strict=True)
            )
            lines, columns = (sorted({size[k] for size in cells}) for k in (0, 1))
            rows = [
                (line, [cells.get((line, column)) for column in columns])
                for line in reversed(lines)
            ]
            systems[label].append({"title": title, "columns": columns, "rows": rows})
    texts = [
        short(each.max_us).replace(THIN_SPACE, " ") if each.max_us else "failed"
        for each in report.verdicts
    ]
    return {"x": data.AXIS_NAMES[x], "y": data.AXIS_NAMES[y], "systems": systems, "texts": texts}


def _pictures(report: Any) -> Iterator[Picture]:
    """The tails of the largest networks that meet the deadline and of some others, and errors over
    precisions."""
    largest = (report.verdicts.largest(places=places) for places in report.systems.values())
    every = [
        *(report.runs[place] for place in largest if place is not None),
        *choose_tails(report.runs),
    ]
    chosen = {group.name: Group(report.cut(group.name), group.rounds) for group in every if group.n}
    if chosen:
        yield tails(
            [*chosen.values()][:MOST_CURVES],
            deadline_us=report.verdicts[0].question.deadline_us,
            relative=False,
        )
    checked = [row for row in report.rows if row.facts["parity_error"] is not None]
    if len({row.configuration["precision"] for row in checked}) > 1:
        yield precisions(report.runs, deadline_us=report.verdicts[0].question.deadline_us)


def _image(report: Any, picture: Picture) -> Markup:
    content = b64encode(image_bytes(picture, "svg")).decode()
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(
        content, report.shown(picture.alt)
    )


def _data(report: Any) -> dict[str, Any]:
    """What the script shows: the verdicts at each deadline, four in a byte, and the curve of each
    configuration.

    A curve has latencies in us, ascending; `above` has the numbers of trials that take longer, by
    the number of all.
    """
    codes = np.pad(report.outcomes, ((0, 0), (0, -report.outcomes.shape[1] % 4))).reshape(
        len(report.outcomes), -1, 4
    )
    packed = (codes << np.arange(0, 8, 2)).sum(axis=2).astype(np.uint8)
    curves, above = [], {}
    for group in report.runs:
        ordered_us = Trials.of(*group.rounds).ordered_us if group.n else []
        powers = 10 ** (np.arange(CURVE_POINTS * math.log10(max(group.n, 1))) / CURVE_POINTS)
        above[str(group.n)] = longer = np.unique([0, *powers.astype(int)])[::-1][: group.n].tolist()
        curves.append([float(f"{ordered_us[group.n - 1 - k]:.4g}") for k in longer])
    return {
        "stops": list(map(short_number, report.stops_us)),
        "times": [with_micro(latency(stop_us)) for stop_us in report.stops_us],
        "systems": list(report.systems.values()),
        "given": report.stops_us.index(report.verdicts[0].question.deadline_us),
        "bytes": packed.shape[1],
        "verdicts": b64encode(packed.tobytes()).decode(),
        "names": list(CLASSES),
        "curves": curves,
        "trials": [group.n for group in report.runs],
        "above": above,
    }
