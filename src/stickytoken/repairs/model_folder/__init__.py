"""Write the folder of a repaired model."""

from stickytoken.repairs.model_folder._write import ModelEdit, embedding_tensor, write_model

__all__ = ["ModelEdit", "embedding_tensor", "write_model"]
