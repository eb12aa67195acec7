"""The report: a page on the contents of a dataset, how well it is mixed, and whether training will wait for data.

Start with `report`. `subject` opens datasets, `scan` and the modules of the sections find facts, `collect` has all of
them and `verdicts` judges; `pictures` and `charts` draw. Facts are plain values without HTML. `croissant` needs none of
these: it describes a dataset for catalogues, from its manifest.
"""
