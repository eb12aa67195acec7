"""A dataset on disk: its manifest, the table of its shards, the shards and their sidecar files.

Here are the files' formats, and how they are written together. `conversion` makes shards of tables, `loading` reads
samples back. Begin with `manifest`, then `files`.
"""
