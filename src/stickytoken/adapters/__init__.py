"""Clean texts inside other libraries: in front of a model, or as a step of a pipeline.

Each module is for one library and needs the extra of that library. This package imports none of them.
"""
