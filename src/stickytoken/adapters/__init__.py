"""Clean texts inside other libraries, before a model encodes them or as a step of a pipeline.

`mteb` does the opposite: it writes copies of a token into documents. Each module supports one library, and
requires stickytoken's extra for that library. Importing `stickytoken.adapters` does not import its modules.
"""
