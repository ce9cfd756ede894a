"""The public names of `stickytoken.data.tasks` under their earlier name."""

from stickytoken.data.metrics import Task
from stickytoken.data.tasks import LAYOUTS, load_task

__all__ = ["LAYOUTS", "Task", "load_task"]
