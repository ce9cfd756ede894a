"""Clean texts inside other libraries: in front of a model, or as a step in their pipelines.

Each module is for one library and needs its extra; none of them is imported here.
"""
