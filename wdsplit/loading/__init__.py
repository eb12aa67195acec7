"""Datasets streamed into training: `Dataset`, `Loader`, `mix` and `EpochShardList`.

Nothing of `tables` or `conversion` is imported here. Begin with `dataset`, then `iteration` (what is left of an epoch)
and `loader` (batches from workers); samples are read in `reading`, processed in `stages` and sent in `transport`.
"""
