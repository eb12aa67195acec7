"""The report: one page that shows what is in a dataset, whether it is mixed, and whether training will wait for it.

`report` composes it: `subject` opens datasets, `scan` and the modules of a section collect facts, `verdicts` judges
them, `charts` and `page` draw. Facts are plain values without HTML.
"""
