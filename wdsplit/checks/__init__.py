"""Checks of a dataset: `verify` (are all bytes as the manifest says?) and `audit` (do the promises hold?).

What the commands `wdsplit verify` and `wdsplit audit` do; neither changes a dataset.
"""
