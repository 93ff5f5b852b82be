"""A report as one HTML file: the answer first, tables, heat maps and curves, and a script for the
rest.

Everything is in the file, no address in it is loaded, and a Content-Security-Policy forbids it. The
script only shows what was computed here. Names come from recordings: Jinja2 escapes each, and
control characters are shown.
"""

import math
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from lstm_judge.plots.heatmap import MAP_AXES, short
from lstm_judge.plots.points import AXIS_NAMES, axis_value, system_labels
from lstm_judge.plots.precision import precisions
from lstm_judge.plots.style import THIN_SPACE, Picture, image_bytes, with_micro
from lstm_judge.plots.tail import choose_tails, tails
from lstm_judge.read.labels import OF_LOADS, load_text, record_command
from lstm_judge.read.rounds import Group, NoTrials, switches_of
from lstm_judge.report import text, views
from lstm_judge.report.answer import NAMES, Report
from lstm_judge.statistics.sequential import limit_ns
from lstm_judge.statistics.trials import Trials
from lstm_judge.summarize import text as summary
from lstm_trt.config.format import NUMBER, frame_cells, latency, listed, short_number

#: Folder of the template, the style and the script.
FOLDER = Path(__file__).parent

#: Most curves that are drawn without the script.
MOST_CURVES = 6

#: Points per power of ten of the curves that the script draws.
CURVE_POINTS = 12

#: Columns of the summary that a narrow terminal drops before this one are in its CSV only.
LESS_DROP = 6

#: Verdict, or that there is none -> class of its cells.
CLASSES = dict(zip(NAMES, "mxnf", strict=True))


#: Signs of the verdicts in the map of the script, beside their colours.
SIGNS = "✓✕?–"


@dataclass(frozen=True)
class Table:
    """A table of the page; `id` begins the ids of its rows."""

    id: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    @property
    def text(self) -> list[bool]:
        """Which columns are no numbers."""
        return [
            not all(NUMBER.fullmatch(cell) for cell in column if cell)
            for column in zip(*self.rows, strict=True)
        ]


def page(report: Report) -> str:
    """The whole file."""
    groups = [group for group in report.runs if group.configuration is not None]
    commands = []
    for group in groups:
        command = record_command(group.configuration, "recordings", len(group.rounds) or 1)
        if command:
            commands.append(command)
    return _page(
        report,
        "report.html",
        ("page.js", "report.js", "explore.js"),
        answer=text.answer(report),
        basis=text.basis(report),
        maps=_maps(report) if len(groups) > 1 else {},
        pictures=[_image(report, picture) for picture in _pictures(report)],
        tables=[table for table in _tables(report) if table.rows],
        commands=commands,
    )


def explorer(report: Report) -> str:
    """The page to explore, for the output of a notebook or a file of its own."""
    said = [*report.runs.remarks, *text.basis(report)]
    return _page(report, "explore.html", ("page.js", "explore.js"), said=said)


def _page(report: Report, template: str, scripts: Sequence[str], **parts: Any) -> str:
    """A page from its template, with what all have."""
    own = {"css": _own("page.css"), "js": _own(*scripts)}
    data = _data(report)
    return (
        _environment(report)
        .get_template(template)
        .render(
            report=report,
            title=text.title(report),
            own={kind: Markup(content) for kind, content in own.items()},
            policy=_policy(own),
            classes=CLASSES,
            signs=SIGNS,
            holds=text.holds(report, calls=bool(data["calls"])),
            overview=Table("s", "", *report.overview),
            data=data,
            **parts,
        )
    )


def _own(*names: str) -> str:
    """Files of this folder, one after another."""
    return "".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def _policy(own: Mapping[str, str]) -> Markup:
    """The Content-Security-Policy: pictures in the page, its style and its script, and nothing
    else."""
    style, script = (_base64(sha256(own[kind].encode()).digest()) for kind in ("css", "js"))
    return Markup(
        f"default-src 'none'; img-src data:; style-src 'sha256-{style}';"
        f" script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'"
    )


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


def _environment(report: Report) -> Environment:
    """Templates in which every text is escaped, and shown as the report shows it."""

    def name(text: object) -> Markup:
        """A name in an element of its own, whatever direction it is written in; a long one is
        cut."""
        whole = report.shown(text)
        cut = report.cut(text)
        if cut == whole:
            return Markup("<bdi>{}</bdi>").format(cut)
        return Markup('<bdi title="{}">{}</bdi>').format(whole, cut)

    def plain(value: object) -> object:
        return value if isinstance(value, Markup) else with_micro(report.shown(value))

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=plain,
    )
    environment.filters["name"] = name
    return environment


def _tables(report: Report) -> Iterator[Table]:
    yield _configurations(report)
    yield Table("b", "Compared with the baseline", *report.compared)
    yield Table("c", "Clusters of slow and fast calls", *frame_cells(report.tails.clusters))
    failures = [
        [group.name, group.failure.stage or "-", group.failure.reason]
        for group in report.runs
        if group.failure
    ]
    yield Table("f", "Failures", ["configuration", "stage", "reason"], failures)
    yield Table(
        "e",
        "Machines, versions and what else ran",
        ["what", "recordings", "value"],
        _stated(report),
    )


def _configurations(report: Report) -> Table:
    """The summary with the verdict after the columns that tell the configurations apart."""
    first, columns, lines = summary.shown(report.rows)
    kept = [place for place, column in enumerate(columns) if not 0 < column.drop < LESS_DROP]
    rows = []
    for number, line in enumerate(lines):
        measured = ["-"] * (len(kept) - first)
        if report.runs[number].n:
            measured = [line[place] for place in kept[first:]]
        rows.append([*line[:first], report.outcome(number), *measured, report.remark(number)])
    header = [columns[place].heading for place in kept]
    header.insert(first, "verdict")
    header.append("remark")
    legends = ["latencies in us after warm-up", *(columns[place].legend for place in kept)]
    if any(cell.endswith("*") for row in rows for cell in row[first:-1]):
        legends.append(summary.STAR)
    return Table("r", "All configurations", header, rows, "; ".join(filter(None, legends)))


def _stated(report: Report) -> list[list[str]]:
    """What the recordings state of machines, versions and other programs, and the number of those
    that state it."""
    found: Counter[tuple[str, str]] = Counter()
    for item in report.runs.recordings:
        for name, value in _facts(item.provenance).items():
            text = str(value)
            if isinstance(value, dict):
                text = ", ".join(f"{key} {each}" for key, each in value.items())
            if text not in ("None", "none", ""):
                found[name.replace("_", " "), text] += 1
    return [[name, str(n), text] for (name, text), n in found.items()]


def _facts(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "machine": stated.get("machine_fingerprint"),
        **(stated.get("machine") or {}),
        **(stated.get("versions") or {}),
        "alone on the CPU": (stated.get("others") or {}).get("alone"),
        "ran while a call was preempted": listed((switches_of(stated) or {}).get("ran", ())),
        "warnings": listed(stated.get("warnings", ())),
    }


def _maps(report: Report) -> dict[str, Any]:
    """The names of both axes, of each system its panels, and the text of each configuration."""
    axes = [group.configuration.workload.axes for group in report.runs]
    varied = [axis for axis in MAP_AXES if len({sizes[axis] or 0 for sizes in axes}) > 1]
    x, y, *_ = dict.fromkeys([*varied, *MAP_AXES])
    texts = [
        short(verdict.max_us).replace(THIN_SPACE, " ") if verdict.max_us else "failed"
        for verdict in report.verdicts
    ]
    systems = _panels(report, x, y, varied[2:])
    return {"x": AXIS_NAMES[x], "y": AXIS_NAMES[y], "systems": systems, "texts": texts}


def _panels(report: Report, x: str, y: str, others: Sequence[str]) -> dict[str, list[dict]]:
    """System -> panels, one for each load and for the sizes on each of the other axes; systems that
    differ in their loads only are one."""
    groups = report.runs.groups
    has_loads = any(group.configuration.protocol.beside for group in groups)
    found: dict[str, dict[tuple, dict[tuple, int]]] = defaultdict(lambda: defaultdict(dict))
    for place, (group, label) in enumerate(
        zip(groups, system_labels(groups, OF_LOADS), strict=True)
    ):
        configuration = group.configuration
        sizes = {axis: size or 0 for axis, size in configuration.workload.axes.items()}
        beside = configuration.protocol.beside  # quiet is first
        key = (beside, load_text(configuration), *(sizes[axis] for axis in others))
        found[label][key][sizes[y], sizes[x]] = place
    systems = defaultdict(list)
    for label, panels in found.items():
        for (_, load, *held), cells in sorted(panels.items()):
            titles = list(map(axis_value, others, held))
            if has_loads:
                titles.insert(0, load)
            systems[label].append(_panel(", ".join(titles), cells))
    return systems


def _panel(title: str, cells: Mapping[tuple, int]) -> dict[str, Any]:
    """Columns and rows of a map, the largest row first; `cells`: sizes (y, x) -> place."""
    columns = sorted({column for _, column in cells})
    sizes = sorted({size for size, _ in cells}, reverse=True)
    rows = [(size, [cells.get((size, column)) for column in columns]) for size in sizes]
    return {"title": title, "columns": columns, "rows": rows}


def _pictures(report: Report) -> Iterator[Picture]:
    """The tails of the largest networks that meet the deadline and of some others, and errors over
    precisions."""
    deadline_us = report.verdicts[0].question.deadline_us
    largest = [report.verdicts.largest(places=places) for places in report.systems.values()]
    groups = [report.runs[place] for place in largest if place is not None]
    chosen = {}
    for group in [*groups, *choose_tails(report.runs)]:
        if group.n:
            chosen[group.name] = Group(report.cut(group.name), group.rounds)
    if chosen:
        yield tails(list(chosen.values())[:MOST_CURVES], deadline_us=deadline_us, relative=False)
    checked = {
        row.configuration["precision"]
        for row in report.rows
        if row.facts["parity_error"] is not None
    }
    if len(checked) > 1:
        yield precisions(report.runs, deadline_us=deadline_us)


def _image(report: Report, picture: Picture) -> Markup:
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(
        _base64(image_bytes(picture, "svg")), report.shown(picture.alt)
    )


def _data(report: Report) -> dict[str, Any]:
    """What the script shows: a digit for each verdict at each deadline, and the curve of each
    configuration.

    A curve has latencies in us, ascending; `above` has the numbers of trials that take longer, by
    the number of all.
    """
    curves = []
    above = {}
    for group in report.runs:
        longer = _thinned(group.n)
        above[str(group.n)] = longer
        ordered_us = Trials.of(*group.rounds).ordered_us if group.n else []
        curves.append([views.short(ordered_us[group.n - 1 - k]) for k in longer])
    deadlines_us = report.slider.deadlines_us
    return {
        "stops": list(map(short_number, deadlines_us)),
        "times": [with_micro(latency(deadline_us)) for deadline_us in deadlines_us],
        "systems": list(report.systems.values()),
        "given": deadlines_us.index(report.verdicts[0].question.deadline_us),
        "verdicts": ["".join(map(str, names)) for names in report.slider.names],
        "names": list(CLASSES),
        "signs": SIGNS,
        "curves": curves,
        "trials": [group.n for group in report.runs],
        "above": above,
        **_views(report),
    }


#: Values that a cell of the map can show: key of the statistic -> what it is called.
VALUES = {"median": "median", "p99": "p99", "p999": "p99.9", "max": "maximum"}


def _views(report: Report) -> dict[str, Any]:
    """What the map and the views of a cell show."""
    question = report.verdicts[0].question
    found = views.dimensions(report.runs)
    dimensions = []
    for each in found:
        dimensions.append(
            {
                "label": each.label,
                "values": list(map(report.cut, each.texts)),
                "arguments": each.arguments,
                "of": each.places,
            }
        )
    near, results = views.beside(found, report.pairs or {})
    values = []
    for row in report.rows:
        us = {key: each.us for key, each in row.percentiles.items()}
        us["max"] = row.statistics.get("max_us")
        values.append([views.short(us.get(key)) for key in VALUES])
    return {
        "asked": f"deadline_us={question.deadline_us:.15g}, confidence={question.confidence:g}",
        "labels": [report.cut(group.name) for group in report.runs],
        "dimensions": dimensions,
        "most": views.MOST_CALLS,
        "first": report.verdicts.largest() or 0,
        "heads": list(VALUES.values()),
        "values": values,
        "misses": [_misses(group, report.slider.deadlines_us) for group in report.runs],
        "clusters": views.clusters(report.tails),
        "without": [
            report.shown(each) if isinstance(each, NoTrials) else "none" for each in report.tails
        ],
        "near": [near[place] for place in range(len(report.runs))],
        "results": results,
        "calls": None if report.pairs is None else views.calls(report.runs, report.tails),
    }


def _misses(group: Group, deadlines_us: Sequence[float]) -> list[int]:
    """The number of the first deadlines that all calls miss, and then the misses of each other that
    any call misses."""
    if not group.n:
        return [0]
    most = Trials.of(*group.rounds).bounds[1]
    misses = [len(most.above(limit_ns(deadline_us))[0]) for deadline_us in deadlines_us]
    return [misses.count(group.n), *(number for number in misses if 0 < number < group.n)]


def _thinned(n: int) -> list[int]:
    """Numbers of trials below n, descending to 0, evenly on a log scale."""
    powers = np.arange(CURVE_POINTS * math.log10(max(n, 1))) / CURVE_POINTS
    return np.unique([0, *(10**powers).astype(int), n - 1])[::-1][:n].tolist()
