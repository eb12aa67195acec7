"""Input files of any format as one table, and the rows selected from it. Independent of shards and plans.

Start with `table` (what a conversion knows of its input), then `find` (files from paths) and `read`. `select` selects
rows, and `formats` has a module for each format.
"""
