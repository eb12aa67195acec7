"""Datasets streamed into training: `Dataset`, `Loader`, `mix` and `EpochShardList`.

This package imports nothing from `tables` or `conversion`. Begin with `dataset`, then `loader` (batches from workers,
and how they resume); `world` finds rank and world size. Samples are read in `reading`, processed in `stages` and sent
in `transport`.
"""
