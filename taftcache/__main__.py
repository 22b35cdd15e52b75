"""Where the commands start: the script ``taftcache``, and ``python -m taftcache`` where it is not on the path."""

import sys

from taftcache.errors import INTERRUPTED, INTERRUPTED_CODE


def main() -> None:
    """Run a command. Ctrl-C is answered in words while the commands are loaded, too, which takes part of a second."""
    try:
        from taftcache.cli import main as run_command
    except KeyboardInterrupt:
        sys.stderr.write(f"taftcache: {INTERRUPTED}\n")
        sys.exit(INTERRUPTED_CODE)
    run_command()


if __name__ == "__main__":
    main()
