"""Erasing: a new version of a dataset without some samples, and the removal of old versions.

Tasks write the shards that have these samples again (`rewrite`). The driver finds the samples, and writes views,
annotations and the version (`erase`, where to start); `gc` removes the files that no kept version names.
"""
