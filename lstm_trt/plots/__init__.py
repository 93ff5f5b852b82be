"""Pictures of runs, one function a picture: `lstm_trt.plots.heat_map(runs, deadline_us=1000)`.

Each takes `runs`, anything that `store.runs.as_runs` takes, and keyword options, and gives a `style.Picture`, which
shows itself in Jupyter. Names are fetched when they are first used: matplotlib is loaded with the first picture.
"""

from __future__ import annotations

import importlib

#: Picture -> module of this package that draws it.
_HOMES = {
    "arrival_tails": "tail",
    "batching": "scaling",
    "box_plots": "box",
    "choose_tails": "tail",
    "curves": "curve",
    "draw_outliers": "page",
    "draw_scaling": "scaling",
    "draw_sweep": "sweep",
    "draw_verdicts": "page",
    "failures": "sweep",
    "fits": "scaling",
    "heat_map": "heatmap",
    "inversions": "scaling",
    "outliers_page": "page",
    "replay_tails": "tail",
    "runtimes": "runtime",
    "tails": "tail",
    "trials_in_order": "trials",
    "verdict_page": "page",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
