"""Annotating: add columns and fields to the samples of a finished dataset.

They come from a table that is joined by key (`annotate`: its tasks spill rows and keys by a hash of the key, and join
each partition in memory, in `passes` and `match`), or from a function (`mapping`). `annotate.Making` is the run of
both, `writing` its tables and side shards.
"""
