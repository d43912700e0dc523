"""Entry point of the command line: `selfplay` and `python -m selfplay`. It imports little itself.

Signals are handled before the imports, which take seconds. `python -m` puts the current folder in
front of all packages; modules of that folder must not replace those that the program imports.
"""

import os
import sys

from selfplay.run import signals


def main() -> int:
    """Run the command line; return the exit code."""
    signals.install()
    try:
        from selfplay.cli import main as cli

        return cli.main()
    except BaseException as error:  # while the command line itself was imported
        if not (isinstance(error, KeyboardInterrupt) or signals.raised()):
            raise
        print("selfplay: interrupted", file=sys.stderr)
        return signals.EXIT_CODE


def _leave_current_folder() -> None:
    """Remove the current folder from the front of the search path, unless selfplay is in it."""
    home = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))
    here = os.path.realpath(os.curdir)
    if here == home or sys.flags.safe_path:
        return
    if sys.path and os.path.realpath(sys.path[0] or os.curdir) == here:
        del sys.path[0]
    sys.path[:] = [place for place in sys.path if place]


if __name__ == "__main__":
    _leave_current_folder()
    sys.exit(main())
