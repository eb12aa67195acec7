"""Stands in for dill in the program of test_container.py: torch imports it, and it asks for a temporary folder."""


def extend(use_dill):
    """Do nothing: torch calls this."""
