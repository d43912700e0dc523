"""`python -m selfplay`: the command line, where the console script is not on the path."""

import sys

from selfplay.cli import main

if __name__ == "__main__":
    sys.exit(main())
