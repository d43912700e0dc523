"""The first composition of a config, which the fork server of the tests makes once.

The first composition loads Hydra and its grammar, and takes three times as long as a later one. The
commands are forks of the server, so each begins after this composition.
"""

import gc

from selfplay.config import compose

compose.load(["+experiment=tiny/smoke"])
gc.freeze()
