"""Rows brought into another order with bounded memory: scattered, merged and gathered.

Nothing here writes shards: `conversion.task` takes the rows that `gather` gives. Begin with `steps` (how a table is cut
into tasks), then `scatter`, `merge` and `gather` in the order of their passes; between the passes rows are in spill
files (`sorted_runs`).
"""
