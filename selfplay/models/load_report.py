"""transformers' report about the tensors of a loaded model, held back until loading has ended."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

TITLE = "LOAD REPORT"
"""Words that every such report contains."""


@contextmanager
def held_back() -> Iterator[None]:
    """Print the report of a model that is loaded in this context when the context ends.

    An interrupt, such as Ctrl-C, drops the report: it would list tensors as missing that were only
    not reached.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    held: list[logging.LogRecord] = []

    def hold(record: logging.LogRecord) -> bool:
        is_report = TITLE in str(record.msg)
        if is_report:
            held.append(record)
        return not is_report

    logger.addFilter(hold)
    try:
        yield
    except KeyboardInterrupt:
        held.clear()
        raise
    finally:
        logger.removeFilter(hold)
        for record in held:
            logger.handle(record)
