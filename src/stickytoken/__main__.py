"""Run the command line with `python -m stickytoken`."""

from stickytoken.cli.main import main

if __name__ == "__main__":
    main()
