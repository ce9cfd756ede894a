"""New rows of the embedding matrix for tokens that are repaired."""

from stickytoken.repairs.rows._context import RowContext
from stickytoken.repairs.rows._make import new_rows

__all__ = ["RowContext", "new_rows"]
