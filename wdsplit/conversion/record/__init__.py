"""The records of a conversion run: published shards and finished passes. Writes no shards.

Start with `notes` (files in the run's folder); `published` keeps the manifest rows of published shards in memory.
"""
