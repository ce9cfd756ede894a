"""Write the folder of a repaired model."""

from stickytoken.repairs.model_folder._write import ModelEdit, write_model

__all__ = ["ModelEdit", "write_model"]
