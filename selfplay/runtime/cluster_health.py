"""Checks that Ray is alive: its head, the node of this machine, and the reserved resources."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfplay.errors import RunError
from selfplay.runtime.gpu_parts import gpus_needed

EVERY = 2.0
"""Seconds between two probes, and timeout of a connection and of its answer."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""First bytes of a gRPC client. A process must answer them: the kernel accepts connections for a
stopped process too."""
SILENCE = {"raylet": 0.0, "gcs_server": 10.0}
"""Seconds without a connection after which one of Ray's processes counts as dead. The raylet is on
this machine, so a refused connection shows its death; a head can be far away, or restart."""
STOPPED = 60.0
"""Seconds without an answer after which a process counts as stopped or hanging, not as busy."""
LOST = 20.0
"""Seconds in which a lost machine may return."""


class RayHealthCheck:
    """Probes Ray's processes by connecting to them.

    Calls of Ray cannot show that its head is gone. If the head is dead, such a call waits, and Ray
    ends the whole process after a minute. If the head is stopped, the call waits forever.
    """

    def __init__(self, ray: Any) -> None:
        """Args:
        ray: The package, connected to a cluster.
        """
        context = ray.get_runtime_context()
        here = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        host, _, port = context.gcs_address.rpartition(":")
        self._addresses = {
            "raylet": (here["NodeManagerAddress"], int(here["NodeManagerPort"])),
            "gcs_server": (host.strip("[]"), int(port)),
        }
        self._probed = time.monotonic()
        self._silent: dict[str, float] = {}
        """Monotonic time of the first failed probe in a row, per process."""
        self.dead: str | None = None
        """Name of the dead process; None while all are alive."""

    def due(self) -> bool:
        """Return True if the last probe was at least `EVERY` seconds ago."""
        return time.monotonic() - self._probed >= EVERY

    def look(self) -> bool:
        """Return True if the head answers; raise RunError if the head or the raylet is dead or
        stopped."""
        self._probed = time.monotonic()
        for name, address in self._addresses.items():
            try:
                connection = socket.create_connection(address, timeout=EVERY)
            except OSError as error:
                # A raylet that does not refuse the connection is alive and busy.
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
        """Raise RunError if a process has not answered for `patience` seconds."""
        since = self._silent.setdefault(name, self._probed)
        if self._probed - since < patience:
            return
        host, port = self._addresses[name]
        self.dead = name
        raise RunError(
            f"runtime: Ray died under this run: its {name} at {host}:{port} {how}; the records of "
            "the run are kept, continue with selfplay train resume=RUN"
        )


def _answers(connection: socket.socket) -> bool:
    """Return True if the peer sends any data or closes the connection."""
    try:
        connection.sendall(GREETING)
        connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


class PlacementCheck:
    """Checks that the resources reserved for actors still exist.

    The resources of a lost machine are lost too.
    """

    def __init__(
        self,
        bundles: Sequence[Mapping[str, float]],
        *,
        state: Callable[[], str],
        nodes: Callable[[], Sequence[Mapping[str, Any]]],
        timeout: float,
    ) -> None:
        """Args:
        bundles: The reserved resources.
        state: Returns the state of the placement group, as Ray names it.
        nodes: Returns the nodes, as `ray.nodes` does.
        timeout: Seconds in which others may free the needed resources.
        """
        self._bundles, self._state, self._nodes, self._timeout = bundles, state, nodes, timeout
        self._lost: float | None = None
        """Monotonic time since which resources are missing; None if none are."""

    def look(self) -> None:
        """Raise RunError if resources were lost and cannot be reserved again."""
        now = time.monotonic()
        if self._state() == "CREATED":
            self._lost = None
            return
        self._lost = now if self._lost is None else self._lost
        lacking = shortage(self._bundles, self._nodes())
        if now - self._lost >= (LOST if lacking else self._timeout):
            raise RunError(
                f"runtime: no room for the actors of this run: {lacking or 'others use it'}; start "
                "machines again, or lower runtime.workers or runtime.learners; then continue with "
                "selfplay train resume=RUN"
            )


def shortage(
    bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return the resources that living nodes lack for bundles; None if there are enough.

    Each bundle must fit on one node, and a part of a GPU on one GPU.
    """
    living = [node["Resources"] for node in nodes if node["Alive"]]
    for name, unit in (("GPU", "GPUs"), ("CPU", "cores")):
        needs = [bundle.get(name, 0.0) for bundle in bundles]
        there = [resources.get(name, 0.0) for resources in living]
        if round(sum(needs) - sum(there), 4) > 0:  # Ray counts in steps of 1/10000
            return f"{sum(needs):g} {unit} are needed, the cluster has {sum(there):g}"
        if name == "GPU" and (whole := gpus_needed(needs)) > sum(there):
            return (
                f"{whole} GPUs are needed, because an actor with a part of a GPU has it on one "
                f"GPU, and the cluster has {sum(there):g}"
            )
    for bundle in bundles:
        if not any(all(has.get(n, 0.0) >= v for n, v in bundle.items()) for has in living):
            needed = " and ".join(f"{value:g} {name}" for name, value in bundle.items())
            return f"no machine of the cluster has {needed} for one actor"
    return None
