"""A dataset on disk: its manifest, the table of its shards, the shards and their sidecar files.

What the files hold, and how they are written together. How tables become shards belongs to `conversion`, how samples
are read back to `loading`. Begin with `manifest`, then `files`.
"""
