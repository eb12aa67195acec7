"""The bytes of tar files: headers, members, samples and their names.

Pure (no I/O): functions from bytes to bytes, whole batches at a time with numpy; `storage` and `shards` open files.
Start with `members` (the members of a batch, packed and parsed), then `headers` (the 512-byte blocks). `scan` and
`samples` read tars of other programs.
"""
