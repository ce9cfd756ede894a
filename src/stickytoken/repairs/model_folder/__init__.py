"""Write the folder of a repaired model."""

from stickytoken.repairs.model_folder._write import ModelEdit, rows_writable, write_model

__all__ = ["ModelEdit", "rows_writable", "write_model"]
