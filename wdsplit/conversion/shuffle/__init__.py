"""Rows brought into another order with bounded memory: in memory if they fit, else scattered, merged and gathered.

Nothing here writes shards: `conversion.task` takes the rows that `in_memory` or `gather` gives. Begin with `steps` (how
a table is cut into tasks), then `scatter`, `merge` and `gather` in the order of their passes; between the passes rows
are in spill files (`sorted_runs`).
"""
