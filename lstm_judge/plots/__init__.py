"""Figures of runs, one function per figure: `lab.plots.heat_map(runs, deadline_us=1000)`.

Each function takes `runs`, the result of `load` (or a path, recordings or groups), and keyword
options, and returns a `style.Picture`, which Jupyter displays. A figure of one panel is also drawn
into axes of one's own, `ax=`; then their figure is returned. Names are loaded when they are first
used (`registry.PICTURES`), and matplotlib with them.
"""

from lstm_judge.registry import PICTURES
from lstm_trt.config.format import FIGURE_FORMATS
from lstm_trt.registry import offer

#: File formats that the functions `draw_*` and `--figures` write.
FORMATS = FIGURE_FORMATS

__getattr__, __dir__ = offer(__name__, PICTURES, "PICTURES")
