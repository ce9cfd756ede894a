"""The tabs of the app: their layout and their events."""
