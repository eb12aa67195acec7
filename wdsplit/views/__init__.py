"""Views: which samples of a dataset an epoch holds, chosen by conditions and lists of keys.

Begin with `view`, which gives the loader what it asked for; `make` stores views. `choosing` reads the columns of
samples shard by shard, `keys` looks up lists of keys.
"""
