"""`python -m lstm_literature`: the command line, also from a checkout that is not installed."""

import sys

from lstm_literature.commands import main

if __name__ == "__main__":
    sys.exit(main())
