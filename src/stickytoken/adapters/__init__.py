"""Clean texts inside other libraries, before a model encodes them or as a step of a pipeline.

Each module serves one library, and needs the extra of stickytoken for that library. This file imports none of
these modules.
"""
