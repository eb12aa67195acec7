"""What a conversion run records: the shards that it has published and the passes that have ended.

Nothing here writes shards. Begin with `notes` (files in the run's folder); `published` keeps the manifest's rows of
published shards in memory.
"""
