"""Load encoders by name, folder or object."""
