"""Evaluation tasks and their metrics, from files or from MTEB."""

from stickytoken.tasks.files import LAYOUTS, load_task
from stickytoken.tasks.metrics import Task

__all__ = ["LAYOUTS", "Task", "load_task"]
