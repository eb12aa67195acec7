"""Tables converted into balanced shards: planned, written by independent tasks, committed and resumed.

Nothing of `loading` is imported here. Begin with `convert`, then `driver` (the passes of a conversion, or of a share
of it) and `task` (the work for a few shards); `run` decides what is resumed or overwritten. `plan` gives each shard
its rows, `record` notes what is done, `shuffle` brings rows into another order.
"""
