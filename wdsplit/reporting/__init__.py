"""The report: a page on the contents of a dataset, how well it is mixed, and whether training will wait for data.

Start with `report`. `subject` opens datasets, `scan` and the modules of each section collect facts, `verdicts` judges
them, `charts` and `page` draw them. Facts are plain values without HTML.
"""
