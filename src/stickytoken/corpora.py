"""The public names of `stickytoken.data` under their earlier name."""

from stickytoken.data import *  # noqa: F403
from stickytoken.data import __all__  # noqa: F401
