"""``python -m taftcache``: the commands, where the script is not on the path."""

from taftcache.cli import main

if __name__ == "__main__":
    main()
