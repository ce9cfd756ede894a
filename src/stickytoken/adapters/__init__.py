"""Clean texts inside other libraries, before a model encodes them or as a step of a pipeline.

Each module supports one library, and requires stickytoken's extra for that library. Importing
`stickytoken.adapters` does not import its modules.
"""
