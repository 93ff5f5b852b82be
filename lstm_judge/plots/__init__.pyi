from lstm_judge.plots.box import box_plots as box_plots, violins as violins
from lstm_judge.plots.curve import curves as curves
from lstm_judge.plots.heatmap import heat_map as heat_map
from lstm_judge.plots.over_time import timeline as timeline
from lstm_judge.plots.page import draw_outliers as draw_outliers, draw_verdicts as draw_verdicts
from lstm_judge.plots.page import outliers_page as outliers_page, verdict_page as verdict_page
from lstm_judge.plots.precision import precisions as precisions
from lstm_judge.plots.runtime import runtimes as runtimes
from lstm_judge.plots.scaling import batching as batching, draw_scaling as draw_scaling, fits as fits, growth as growth
from lstm_judge.plots.scaling import inversions as inversions
from lstm_judge.plots.sweep import draw_sweep as draw_sweep
from lstm_judge.plots.tail import arrival_tails as arrival_tails, choose_tails as choose_tails, loads as loads
from lstm_judge.plots.tail import replay_tails as replay_tails, tails as tails
from lstm_judge.plots.trials import trials_in_order as trials_in_order
from lstm_judge.plots.version import versions as versions

__all__ = [
    "arrival_tails",
    "batching",
    "box_plots",
    "choose_tails",
    "curves",
    "draw_outliers",
    "draw_scaling",
    "draw_sweep",
    "draw_verdicts",
    "fits",
    "growth",
    "heat_map",
    "inversions",
    "loads",
    "outliers_page",
    "precisions",
    "replay_tails",
    "runtimes",
    "tails",
    "timeline",
    "trials_in_order",
    "verdict_page",
    "versions",
    "violins",
]
FORMATS: tuple[str, ...]
