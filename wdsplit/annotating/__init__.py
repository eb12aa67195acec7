"""Annotating: join columns of a table to the samples of a finished dataset, by their keys.

Tasks spill rows and keys by a hash of the key, join each partition in memory (`match`), and write the result as a table
for each shard (`passes`). Start with `annotate`.
"""
