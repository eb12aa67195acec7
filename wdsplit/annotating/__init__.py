"""Annotating: join columns of a table to the samples of a finished dataset, by their keys.

Tasks scatter rows and keys by a hash of the key (`scatter`), join each partition in memory (`join`), and write the
result as a table for each shard (`gather`). Start with `annotate`.
"""
