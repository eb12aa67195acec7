"""Scans tars that other programs wrote, and makes places for each and a manifest for all.

`conversion.adopt_tars` writes these beside the tars, `loading.tars` into a cache folder.
"""
