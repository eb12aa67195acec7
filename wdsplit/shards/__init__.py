"""A dataset on disk: its manifest, the table of its shards, the shards and their sidecar files.

Defines the formats of the files, and writes them. `conversion` makes shards of tables, `loading` reads samples back.
Start with `manifest`, then `files`.
"""
