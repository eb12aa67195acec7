"""Bytes in folders and buckets: listed, read by ranges, and published whole or not at all.

Nothing here knows what a shard or a manifest is. Begin with `interface` (what every storage can do) and `opening`
(which storage a URL names); `local`, `s3` and `fsspec_storage` implement the interface.
"""
