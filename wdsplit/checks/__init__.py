"""Checks of a dataset: `verify` (are all bytes as the manifest says?) and `audit` (are the loading promises kept?).

The commands `wdsplit verify` and `wdsplit audit` print what they return; nothing here changes a dataset. Begin with
`verify`.
"""
