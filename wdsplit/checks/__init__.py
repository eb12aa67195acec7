"""Checks of a dataset: `verify` (does every byte match the manifest?) and `audit` (are the loading promises kept?).

The commands `wdsplit verify` and `wdsplit audit` print the results. Start with `verify`.
"""
