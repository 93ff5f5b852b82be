"""`python -m lstm_trt`: the command line, also from a checkout that is not installed."""

import sys

from lstm_trt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
