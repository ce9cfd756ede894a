"""Store, identity, progress and engines of a measurement, whatever is measured."""
