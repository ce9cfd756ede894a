"""New rows of the embedding matrix for tokens that are repaired."""

from stickytoken.repairs.rows._context import RowContext
from stickytoken.repairs.rows._make import new_rows
from stickytoken.repairs.rows._pieces import pieces_of

__all__ = ["RowContext", "new_rows", "pieces_of"]
