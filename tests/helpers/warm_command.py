"""The state of a command that has composed a config, loaded once by the fork server of the tests.

Hydra and its grammar are loaded by the first composition, which takes three times as long as the
next one. A command in a fork of the server begins after it.
"""

import gc

from selfplay.config import compose

compose.load(["+experiment=tiny/smoke"])
gc.freeze()
