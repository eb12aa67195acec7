"""The bytes of tar files: headers, members, samples and their names.

Pure (no I/O): functions from bytes to bytes, whole batches at a time with numpy; files are opened in
`storage` and `shards`.
Begin with `members` (the members of a batch, packed and parsed), then `headers` (the 512-byte blocks).
"""
