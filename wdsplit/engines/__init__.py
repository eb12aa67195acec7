"""Engines: map a function over tasks in this process, in threads, in processes or on a Ray cluster.

An engine does not know what its tasks do. Start with `local` (the interface and the engine of one machine); `ray`
implements the same interface on a cluster. `watching` reports the progress of steps before the tasks.
"""
