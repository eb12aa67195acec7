"""Views: the samples of a dataset that an epoch uses, selected by conditions and lists of keys.

Start with `view`, which resolves the arguments of a loader. `make` stores views, `choosing` reads the columns of
samples shard by shard, and `keys` looks up lists of keys.
"""
