"""Input files of any format as one table, and the rows selected from it.

Nothing here knows of shards or plans. Begin with `table` (what an input looks like to a conversion), then `find` (the
files that a path names) and `read`; `select` chooses rows, `formats` has a module for each format.
"""
