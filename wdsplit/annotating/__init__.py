"""Annotating: columns of a table joined to the samples of a finished dataset, by their keys.

Rows and keys are scattered by a hash of the key, each partition is joined in memory, and what was found is written as a
table for each shard. Begin with `annotate`; the tasks are in `scatter`, `join` and `gather`.
"""
