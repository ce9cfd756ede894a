"""python -m stickytoken."""

from stickytoken.cli.main import main

main()
