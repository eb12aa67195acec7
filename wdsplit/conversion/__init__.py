"""Conversion of tables into balanced shards: plan, independent tasks, commit, resume. Imports nothing of `loading`.

Start with `convert`, then `driver` (runs the passes) and `task` (writes a few shards). `run` decides what to resume or
overwrite, `plan` assigns rows to shards, `record` notes finished work, `shuffle` reorders rows.
"""
