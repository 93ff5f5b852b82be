"""`python -m lstm_trt`: the command line, also from a checkout that is not installed."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the working folder first: unless this package is there, its files would be taken
    # for other modules.
    if not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).parents[1]:
        del sys.path[0]
    from lstm_trt.cli.main import main

    sys.exit(main())
