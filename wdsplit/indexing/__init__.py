"""Tars that other programs wrote, read once: the index of each, and a manifest of all.

`conversion.adopt_tars` writes them beside the tars, `loading.tars` into a cache folder.
"""
