"""Evaluation tasks from files: what they are made of, and their metrics."""

from stickytoken.tasks.files import LAYOUTS, load_task
from stickytoken.tasks.protocol import Task

__all__ = ["LAYOUTS", "Task", "load_task"]
