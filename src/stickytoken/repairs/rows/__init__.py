"""New rows of the embedding matrix for tokens that are repaired."""

from stickytoken.repairs.rows._context import RowContext, RowStrategy, RowTarget
from stickytoken.repairs.rows._make import ROW_ORDER, new_rows

__all__ = ["ROW_ORDER", "RowContext", "RowStrategy", "RowTarget", "new_rows"]
