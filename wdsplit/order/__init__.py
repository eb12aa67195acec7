"""The order of an epoch: position -> shard and sample, rank, worker and step.

Pure (no I/O): functions of counts and seeds, with no file, network, clock, environment or torch. Nothing here knows how
samples are stored. Begin with `epoch` (the order of one dataset), then `split` (which reader takes a position).
"""
