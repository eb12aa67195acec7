"""What a logger says, where pytest's own capture does not reach: in scripts that tests start."""

import contextlib
import logging


@contextlib.contextmanager
def logged(name, level=logging.WARNING):
    """Give the list of the messages of a logger, from a level on."""
    messages, handler, logger = [], logging.Handler(level), logging.getLogger(name)
    handler.emit = lambda record: messages.append(record.getMessage())
    level_before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level_before)
