"""A Ray cluster: one that is started here, or one that exists; what actors may use of it."""

import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selfplay.errors import ConfigError, SelfplayError, StalledError
from selfplay.runtime.health import PlacementCheck, RayHealthCheck, shortage

PORT = 6379
"""Where a head node listens unless it is told otherwise."""
PATIENCE = 5.0
"""Seconds in which a head node takes a connection, or is not there."""
TICK = 1.0
"""Most seconds of a wait between two looks at who is still alive."""


def require_ray(where: str = "runtime") -> Any:
    """The package; raises ConfigError where it is not installed."""
    if find_spec("ray") is None:
        raise ConfigError(f"{where}: needs the package ray (pip install 'selfplay[ray]')")
    import ray

    return ray


class RayCluster:
    """Connected when it is made. Every wait ends after `timeout` seconds and says what for; sooner
    where Ray dies."""

    def __init__(self, *, address: str | None, cpus: float, timeout: float) -> None:
        """Args:
        address: null starts a Ray on this machine; host:port or auto joins one that exists. One
            that this process is connected to already is used in any case.
        cpus: Cores that actors will ask for, all together.
        timeout: Seconds of every wait.

        Raises ConfigError where the cluster is not there.
        """
        self.ray, self.timeout = require_ray(), timeout
        self._group: Any = None
        self._bundles: list[dict[str, float]] = []
        self._places: PlacementCheck | None = None
        self.ours = not self.ray.is_initialized()
        if self.ours:
            terminated = signal.getsignal(signal.SIGTERM)
            quiet = {"log_to_driver": False, "logging_level": "error"}
            if address is None:
                # More actors than cores are allowed: they share them. One without takes a little.
                cores = max(os.cpu_count() or 1, math.floor(cpus) + 1)
                self.ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)
            else:
                found = reachable(address)
                # To a cluster that it finds itself, and to no other, Ray shows this user's token.
                here = address == "auto" and "RAY_ADDRESS" not in os.environ
                try:
                    self.ray.init("auto" if here else found, **quiet)
                except (
                    ConnectionError,
                    RuntimeError,
                    ValueError,
                    self.ray.exceptions.AuthenticationError,
                ) as error:
                    raise ConfigError(
                        f"runtime.address: {address}: {_first_line(error)}; a cluster that was "
                        "started where there is ~/.ray/auth_token asks for the same one here, and "
                        "for RAY_AUTH_MODE=token"
                    ) from error
            if terminated and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminated)  # Ray's own prints stacks and aborts
        self._pulse = RayHealthCheck(self.ray)

    def reserve(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """Set resources aside for actors: a bundle for each, such as {"CPU": 1, "GPU": 1}.

        Raises ConfigError where the cluster lacks them.
        """
        from ray.util.placement_group import placement_group, placement_group_table

        self._bundles = [{k: v for k, v in bundle.items() if v} for bundle in bundles]
        # A bundle has something in it, and an actor without a core may yet be placed.
        bundles = [bundle or {"CPU": 0.01} for bundle in self._bundles]
        if lacking := shortage(bundles, self.ray.nodes()):
            raise ConfigError(
                f"runtime: {lacking}; lower runtime.workers, runtime.learners, or the cpus and "
                "gpus that each one asks for"
            )
        self._group = placement_group(bundles)
        self._places = PlacementCheck(
            bundles,
            state=lambda: str(placement_group_table(self._group)["state"]),
            nodes=self.ray.nodes,
            timeout=self.timeout,
        )
        self.get(self._group.ready(), f"{len(bundles)} places for actors in the cluster")

    def actor(self, kind: type, *, bundle: int, groups: Mapping[str, int] | None = None) -> Any:
        """An actor of a class, made without arguments, with the resources of a bundle.

        It does not come back by itself when it dies, because what it knew would be lost; whoever
        made it makes another.

        Args:
            kind: Its class. Importable where it runs; it is not copied.
            bundle: Index of its bundle.
            groups: Threads by name that its methods may be called in (`method.options(
                concurrency_group=...)`).
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        given = {"concurrency_groups": dict(groups)} if groups else {"max_restarts": 0}
        resources = self._bundles[bundle]
        options = {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=bundle
            ),
            "runtime_env": {"env_vars": environment()},
        }
        return self.ray.remote(**given)(kind).options(**options).remote()

    def get(self, refs: Any, what: str) -> Any:
        """The value of an object, or of several; `what` is waited for."""
        end = time.monotonic() + self.timeout
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                return self.ray.get(refs, timeout=min(TICK, left))
            except self.ray.exceptions.GetTimeoutError as error:
                self.check()
                if left <= TICK:
                    raise StalledError(
                        f"runtime: waited {self.timeout:g} s for {what}; see what keeps the "
                        "cluster busy, or raise runtime.timeout"
                    ) from error
            except self.ray.exceptions.RayTaskError as error:
                raise ours(error) from None

    def check(self, *, now: bool = False) -> None:
        """Raise RunError where Ray is dead, or has no room any more for what was reserved.

        To be called in every wait, where it looks every few seconds. With `now`, to be called
        before what calls Ray's head: it looks at once, and waits for a head that may come back.
        """
        if not (now or self._pulse.due()):
            return
        there = self._pulse.look()
        while now and not there:
            time.sleep(TICK)
            there = self._pulse.look()
        if there and self._places is not None:
            self._places.look()

    def put(self, value: Any) -> Any:
        """A reference to an object that all may read; RunError where Ray is dead."""
        self.check(now=True)
        return self.ray.put(value)

    @property
    def dead(self) -> bool:
        """Whether a look has found Ray dead."""
        return self._pulse.dead is not None

    def kill(self, actor: Any) -> None:
        """End an actor at once."""
        self.ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Give back what was reserved; end the Ray that was started here, or leave the cluster."""
        # A dead head would be waited for.
        if self.ray.is_initialized() and self._group is not None and not self.dead:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)
        self._group = None
        if self.ours:
            if self.dead:
                self._end_processes()
            self.ray.shutdown()

    def _end_processes(self) -> None:
        """End the Ray that was started here at once: it waits for one of it that is stopped."""
        node = self.ray._private.worker._global_node
        if node is not None:
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def ours(error: Any) -> BaseException:
    """What a method of an actor raised: our own errors as they were, others with Ray's report."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, SelfplayError) else error


def reachable(address: str) -> str:
    """host:port of a cluster; raises ConfigError where nobody listens there.

    Ray itself would wait a minute and then end the process.
    """
    found = address
    if address == "auto":
        require_ray()
        from ray._private.utils import read_ray_address

        found = os.environ.get("RAY_ADDRESS") or read_ray_address() or ""
        if not found:
            raise ConfigError(
                "runtime.address: auto: no cluster was started on this machine; run `ray start "
                "--head` first, give host:port, or leave out the address to start one"
            )
    if "://" in found:
        raise ConfigError(
            f"runtime.address: {found!r} is for Ray's client; start on a node of the cluster with "
            "auto, or give host:port of its head node"
        )
    host, _, port = found.rpartition(":") if ":" in found else (found, "", str(PORT))
    if not host or not port.isdigit():
        raise ConfigError(f"runtime.address: {address!r} is neither auto nor host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"runtime.address: no Ray cluster at {host}:{port} ({_first_line(error)}); start one "
            "with `ray start --head`, or leave out the address to start one here"
        ) from error
    return f"{host}:{port}"


def environment() -> dict[str, str]:
    """What actors inherit: where this process finds modules, where caches and networks are."""
    installed = (sys.prefix, sys.base_prefix)
    paths = [str(Path(path).resolve()) for path in sys.path if path.endswith(".zip") is False]
    own = [path for path in paths if not path.startswith(installed)]
    kept = (
        *("SELFPLAY_CACHE", "HF_HUB_OFFLINE", "HF_HOME", "TOKENIZERS_PARALLELISM"),
        *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    )
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(own)),
        **{name: os.environ[name] for name in kept if name in os.environ},
    }


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
