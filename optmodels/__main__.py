"""The ``optmodels`` command, and ``python -m optmodels``."""

import gc
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback also while its modules are imported."""
    gc.set_threshold(200_000, 20, 50)  # most objects stay: no tenth of the time goes into garbage
    try:
        from optmodels.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(4)


if __name__ == "__main__":
    main()
