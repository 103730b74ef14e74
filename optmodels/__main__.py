"""The ``optmodels`` command, and ``python -m optmodels``."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback also while its modules are imported."""
    try:
        from optmodels.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(4)


if __name__ == "__main__":
    main()
