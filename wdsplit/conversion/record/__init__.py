"""What a conversion run records: the shards that it has published and the passes that have ended.

Begin with `notes` (what is written into the run's folder); `published` holds the rows of published shards in memory.
"""
