"""Engines: map a function over tasks in this process, in threads, in processes or on a Ray cluster.

An engine knows nothing of what its tasks do. Begin with `local` (the interface and the engines of one machine); `ray`
is the same interface on a cluster. `watching` is the progress of what precedes the tasks.
"""
