"""What this package adds to the tables of `lstm_trt.registry`."""

from lstm_trt.registry import Command, defined

STOPPING = {"decided": "lstm_judge.statistics.sequential:Evidence"}

CACHES = {"environments": "lstm_judge.environments:CACHE"}

AFTER = {"sweep": "lstm_judge.cli.after"}

COMMANDS = {
    "versions": Command(
        50,
        "lstm_judge.cli.versions",
        "recording",
        "compare versions of a library on one network, recorded in interleaved rounds",
    ),
    "watch": Command(
        60,
        "lstm_judge.cli.watch",
        "recording",
        "show the progress of a running recording in one line; no verdict before the end",
    ),
    "summarize": Command(
        80,
        "lstm_judge.cli.summarize",
        "answers",
        "print one row per configuration: n, maximum, percentiles with exact intervals, outliers,"
        " clusters",
    ),
    "verdict": Command(
        90,
        "lstm_judge.cli.verdict",
        "answers",
        "test whether a latency percentile meets a deadline, with stated confidence",
    ),
    "outliers": Command(
        100,
        "lstm_judge.cli.outliers",
        "answers",
        "explain the latency tail: outliers, clusters, periods, and coinciding events",
    ),
    "compare": Command(
        110,
        "lstm_judge.cli.compare",
        "answers",
        "test whether others are faster than, slower than, or the same as A, in median and tail",
    ),
    "replay": Command(
        120,
        "lstm_judge.cli.replay",
        "answers",
        "estimate the latencies of a closed-loop recording at a fixed call rate",
    ),
    "scaling": Command(
        130,
        "lstm_judge.cli.scaling",
        "answers",
        "show how latency grows with network size: linearity, breaks, batching, larger networks"
        " that are faster",
    ),
    "report": Command(
        140,
        "lstm_judge.cli.report",
        "answers",
        "write verdicts and what they rest on as one HTML file to hand over",
    ),
    "rerun": Command(
        150,
        "lstm_judge.cli.rerun",
        "notebooks",
        "run notebooks with other parameters; fails if any cell fails",
    ),
}

API = defined(
    "lstm_judge",
    {
        "compare.compare": ("compare",),
        "verdict.verdict": ("verdict",),
        "outliers.outliers": ("outliers",),
        "replay": ("replay",),
        "scaling.scaling": ("scaling",),
        "summarize.summarize": ("summarize",),
        "campaign": (
            *("confirm", "describe_runs", "gpu_runs", "largest_that_meets"),
            *("load_or_record", "own_networks", "show"),
        ),
        "read.labels": ("size_of",),
        "read.runs": ("Runs", "load"),
        "report.explore": ("explore",),
        "report.report": ("report",),
    },
)
API |= {
    "plots": "lstm_judge.plots",
    "rerun_notebooks": "lstm_judge.rerun:rerun",
    "versions": "lstm_judge.versions:record_versions",
    "watch": "lstm_judge.watch:follow",
}

#: No name may be that of a module in `lstm_judge.plots`: importing that module would replace it.
PICTURES = defined(
    "lstm_judge.plots",
    {
        "box": ("box_plots", "violins"),
        "curve": ("curves",),
        "heatmap": ("heat_map",),
        "over_time": ("timeline",),
        "page": ("draw_outliers", "draw_verdicts", "outliers_page", "verdict_page"),
        "precision": ("precisions",),
        "runtime": ("runtimes",),
        "scaling": ("batching", "draw_scaling", "fits", "growth", "inversions"),
        "sweep": ("draw_sweep",),
        "tail": ("arrival_tails", "choose_tails", "loads", "replay_tails", "tails"),
        "trials": ("trials_in_order",),
        "version": ("versions",),
    },
)

TEXTS = {
    "Comparisons": "lstm_judge.compare.text",
    "ComparisonSeries": "lstm_judge.compare.text",
    "OutlierAnswers": "lstm_judge.outliers.text",
    "Replays": "lstm_judge.replay",
    "Report": "lstm_judge.report.text",
    "ScalingAnswers": "lstm_judge.scaling.text",
    "Summary": "lstm_judge.summarize.text",
    "Verdicts": "lstm_judge.verdict.text",
}
