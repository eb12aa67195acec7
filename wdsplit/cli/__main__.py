"""`python -m wdsplit.cli`."""

from wdsplit.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
