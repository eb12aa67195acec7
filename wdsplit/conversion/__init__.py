"""Tables converted into balanced shards: planned, written by independent tasks, committed and resumed.

Nothing of `loading` is imported here. Begin with `convert` (the driver of all passes), then `task` (the work for one
shard). `plan` decides, `record` notes what is done, `shuffle` brings rows into another order.
"""
