"""Takes the library's place in programs of `container`: torch imports that, and it asks for a temporary folder."""


def extend(use_dill):
    """Do nothing: torch calls this."""
