"""Whether the Ray under this process lives: its head, and the node of this machine."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfplay.errors import RunError

EVERY = 2.0
"""Seconds between two looks, and in which a process takes a connection and answers."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""How a client of gRPC begins; the kernel takes connections for a process that is stopped."""
SILENCE = {"raylet": 0.0, "gcs_server": 10.0}
"""Seconds without a connection after which one of Ray's processes is dead. Nothing but death comes
between this process and the raylet beside it; a head can be far away, or start again."""
STOPPED = 60.0
"""Seconds without an answer after which one is stopped, or hangs, and no longer has much to do."""
LOST = 20.0
"""Seconds in which a machine that was lost may come back."""


class RayHealthCheck:
    """Looks by connecting, because a call of Ray would wait for a dead head: after a minute of
    that Ray ends the whole process. For one that is stopped it would wait for ever."""

    def __init__(self, ray: Any) -> None:
        """Args:
        ray: The package, connected.
        """
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        host, _, port = context.gcs_address.rpartition(":")
        self._places = {
            "raylet": (here["NodeManagerAddress"], int(here["NodeManagerPort"])),
            "gcs_server": (host.strip("[]"), int(port)),
        }
        self._looked = time.monotonic()
        self._silent: dict[str, float] = {}
        """Since which look each is silent: when nobody looked, nobody was."""
        self.dead: str | None = None
        """Which process, once it is known."""

    def due(self) -> bool:
        """Whether the last look was long enough ago."""
        return time.monotonic() - self._looked >= EVERY

    def look(self) -> bool:
        """Whether the head answers; RunError where it or the raylet is dead or stopped."""
        self._looked = time.monotonic()
        for name, place in self._places.items():
            try:
                connection = socket.create_connection(place, timeout=EVERY)
            except OSError as error:
                # A raylet that does not refuse is there, and has much to do.
                refused = name != "raylet" or isinstance(error, ConnectionRefusedError)
                self._judge(name, "takes no connection", SILENCE[name] if refused else STOPPED)
                continue
            with connection:
                if _answers(connection):
                    self._silent.pop(name, None)
                else:
                    self._judge(name, f"has answered nothing for {STOPPED:g} s", STOPPED)
        return "gcs_server" not in self._silent

    def _judge(self, name: str, how: str, patience: float) -> None:
        """Raise RunError where a process was silent for long enough."""
        since = self._silent.setdefault(name, self._looked)
        if self._looked - since < patience:
            return
        host, port = self._places[name]
        self.dead = name
        raise RunError(
            f"runtime: Ray died under this run: its {name} at {host}:{port} {how}; what was "
            "recorded is kept, go on with selfplay train resume=RUN"
        )


def _answers(connection: socket.socket) -> bool:
    """Whether who took a connection says anything, be it that it takes it back."""
    try:
        connection.sendall(GREETING)
        connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


class PlacementCheck:
    """Whether all that was set aside for actors is still there: with a machine its places go."""

    def __init__(
        self,
        bundles: Sequence[Mapping[str, float]],
        *,
        state: Callable[[], str],
        nodes: Callable[[], Sequence[Mapping[str, Any]]],
        timeout: float,
    ) -> None:
        """Args:
        bundles: What is set aside.
        state: Of the placement group, in Ray's words.
        nodes: What `ray.nodes` gives.
        timeout: Seconds in which others may free what is needed.
        """
        self._bundles, self._state, self._nodes, self._timeout = bundles, state, nodes, timeout
        self._lost: float | None = None
        """Since which look something is missing."""

    def look(self) -> None:
        """Raise RunError where places were lost and no others can be had."""
        now = time.monotonic()
        if self._state() == "CREATED":
            self._lost = None
            return
        self._lost = now if self._lost is None else self._lost
        lacking = shortage(self._bundles, self._nodes())
        if now - self._lost >= (LOST if lacking else self._timeout):
            raise RunError(
                f"runtime: no room for the actors of this run: {lacking or 'others use it'}; start "
                "machines again, or lower runtime.workers or runtime.learners; then go on with "
                "selfplay train resume=RUN"
            )


def shortage(
    bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, Any]]
) -> str | None:
    """What living nodes lack for bundles, each of which must be on one of them."""
    living = [node["Resources"] for node in nodes if node["Alive"]]
    for name, called in (("GPU", "GPUs"), ("CPU", "cores")):
        needs = [bundle.get(name, 0.0) for bundle in bundles]
        there = [resources.get(name, 0.0) for resources in living]
        if round(sum(needs) - sum(there), 4) > 0:  # Ray counts in steps of 1/10000
            return f"{sum(needs):g} {called} are needed, the cluster has {sum(there):g}"
    for bundle in bundles:
        if not any(all(has.get(n, 0.0) >= v for n, v in bundle.items()) for has in living):
            asked = " and ".join(f"{value:g} {name}" for name, value in bundle.items())
            return f"no machine of the cluster has {asked} for one actor"
    return None
