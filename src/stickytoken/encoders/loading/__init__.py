"""From a name, folder or object to an encoder."""
