"""Cleaning inside other libraries: in front of a model, and as a step of their pipelines.

Each module is for one library and needs its extra; nothing is imported here.
"""
