"""Pictures of runs, one function a picture: `lab.plots.heat_map(runs, deadline_us=1000)`.

Each takes `runs`, anything that `store.runs.as_runs` takes, and keyword options, and gives a `style.Picture`, which
shows itself in Jupyter. Names are fetched when they are first used (`registry.PICTURES`): matplotlib is loaded with
the first picture.
"""

from lstm_trt import registry

__getattr__, __dir__ = registry.offer("PICTURES", __name__)
