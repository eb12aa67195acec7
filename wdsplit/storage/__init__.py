"""Lists, reads and writes files in folders and buckets; a new file appears complete or not at all.

This package does not know shards or manifests. Start with `interface` (what every storage can do) and `opening`
(which storage a URL names); `local`, `s3` and `fsspec_storage` implement the interface.
"""
