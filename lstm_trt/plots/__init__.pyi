from lstm_trt.plots.box import box_plots as box_plots, violins as violins
from lstm_trt.plots.curve import curves as curves
from lstm_trt.plots.heatmap import heat_map as heat_map
from lstm_trt.plots.over_time import timeline as timeline
from lstm_trt.plots.page import draw_outliers as draw_outliers, draw_verdicts as draw_verdicts
from lstm_trt.plots.page import outliers_page as outliers_page, verdict_page as verdict_page
from lstm_trt.plots.precision import precisions as precisions
from lstm_trt.plots.runtime import runtimes as runtimes
from lstm_trt.plots.scaling import batching as batching, draw_scaling as draw_scaling, fits as fits, growth as growth
from lstm_trt.plots.scaling import inversions as inversions
from lstm_trt.plots.sweep import draw_sweep as draw_sweep, failures as failures
from lstm_trt.plots.tail import arrival_tails as arrival_tails, choose_tails as choose_tails
from lstm_trt.plots.tail import replay_tails as replay_tails, tails as tails
from lstm_trt.plots.trials import trials_in_order as trials_in_order
from lstm_trt.plots.version import versions as versions

FORMATS: tuple[str, ...]
