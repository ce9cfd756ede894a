"""Store, identity, progress and engines, shared by all kinds of measurements."""
