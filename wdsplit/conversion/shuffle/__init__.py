"""Rows brought into another order with bounded memory: scattered, merged and gathered.

Begin with `steps` (how a table is cut into tasks), then `scatter`, `merge` and `gather` in the order of their passes;
between the passes rows lie in spill files (`sorted_runs`).
"""
