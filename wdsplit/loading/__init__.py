"""Datasets streamed into training: `Dataset`, `Loader`, `mix` and `EpochShardList`.

Nothing of `tables` or `conversion` is imported here. Begin with `dataset`, then `loader` (batches from workers,
and how they resume); `world` finds rank and world size. Samples are read in `reading`, processed in `stages` and sent
in `transport`.
"""
