"""Where each sample of an epoch is read: position -> shard and sample, rank, worker and step.

Pure functions of counts and seeds: no file, network, clock, environment or torch. Nothing here knows how samples are
stored. Begin with `epoch` (the order of one dataset), then `split` (which rank and worker reads a position).
"""
