"""Reorders rows with bounded memory: in memory if they fit, else by scatter, merge and gather passes.

Writes no shards: `conversion.task` gets rows from `in_memory` or `gather`. Start with `steps` (how a table is cut into
tasks), then read `scatter` and `gather`. Between passes, rows are in spill files (`sorted_runs`).
"""
