"""Scans tars that other programs wrote, and makes an index for each and a manifest for all.

`conversion.adopt_tars` writes these beside the tars, `loading.tars` into a cache folder.
"""
