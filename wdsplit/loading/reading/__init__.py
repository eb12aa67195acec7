"""Samples read from shards: by windows, from disks, buckets and the cache.

Stages, batches and workers belong elsewhere in `loading`. Begin with `source` (positions -> samples), then `reader`
(which windows are read and kept) and `open_shard` (the windows of one shard).
"""
