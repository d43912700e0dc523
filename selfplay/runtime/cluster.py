"""A Ray cluster, started here or elsewhere, and the resources of the actors on it."""

import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfplay.config.threads import SPIN_VARIABLES
from selfplay.errors import (
    ConfigError,
    RunError,
    SelfplayError,
    StalledError,
    first_line,
    one_line,
    printable,
    require_package,
)
from selfplay.runtime.cluster_health import PlacementCheck, RayHealthCheck, shortage

PORT = 6379
"""Default port of a head node."""
CONNECT_TIMEOUT = 5.0
"""Maximum number of seconds of a connection to a head node."""
INHERITED = (
    *("SELFPLAY_CACHE", "TOKENIZERS_PARALLELISM", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy", *SPIN_VARIABLES),
)
"""Environment variables that actors get from the driver."""
PREFIXES = (
    *("HF_", "HUGGING_FACE_", "TRANSFORMERS_", "VLLM_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_"),
    *("CUDA_", "NCCL_", "GLOO_", "UCX_", "TRITON_", "FLASHINFER_", "FLASH_ATTENTION_"),
)
"""Prefixes of further variables that actors get: access to models, devices and networks."""
MACHINE = ("CUDA_VISIBLE_DEVICES", "VLLM_HOST_IP", "VLLM_PORT")
"""Variables that belong to one process or machine, which actors do not get."""
NICENESS = "RAY_worker_niceness"
"""Variable by which Ray lowers the priority of an actor's process."""
NO_FOLDERS = (".zip", ".__path_hook__")
"""Endings of the entries of `sys.path` that are no folders."""
TICK = 1.0
"""Maximum number of seconds, during a wait, between two checks that Ray is alive."""


def require_ray() -> Any:
    """Return the package; raise ConfigError if it is not installed."""
    require_package("ray", "ray", "runtime")
    import ray

    return ray


class RayCluster:
    """Connection to a Ray cluster, for the driver of a run.

    Every wait ends after `timeout` seconds, or earlier if Ray dies. The error describes the wait.
    """

    def __init__(self, *, address: str | None, cpus: float, timeout: float) -> None:
        """Args:
        address: null starts Ray on this machine; host:port or auto joins an existing cluster. A
            cluster that this process is already connected to is used in any case.
        cpus: Total number of cores that actors will request.
        timeout: Maximum number of seconds of every wait.

        Raises ConfigError if there is no cluster at the address.
        """
        self.ray, self.timeout = require_ray(), timeout
        self._group: Any = None
        self._bundles: list[dict[str, float]] = []
        self._placement: PlacementCheck | None = None
        self.connected_here = not self.ray.is_initialized()
        """True if this object made the connection to the cluster; `close` then ends it."""
        self.log_folder: Path | None = None
        """Folder of Ray's logs, on each machine; None if the connection was there before."""
        if self.connected_here:
            terminated = signal.getsignal(signal.SIGTERM)
            settings = {"log_to_driver": False, "logging_level": "error", "job_config": own_job()}
            if address is None:
                # Actors share the cores if they request more. An actor without cores needs a part
                # of one.
                cores = max(os.cpu_count() or 1, math.floor(cpus) + 1)
                try:
                    made = self.ray.init(
                        "local", num_cpus=cores, include_dashboard=False, **settings
                    )
                except Exception as error:
                    if type(error) is not Exception:  # Ray has no class for this error
                        raise
                    raise RunError(
                        f"runtime: Ray did not start on this machine: {first_line(error)} The "
                        "machine may be busy; try again, or start Ray before the run (ray start "
                        "--head) and set runtime.address=auto"
                    ) from error
            else:
                resolved = reachable(address)
                # Ray sends this user's token only to a cluster that it finds itself.
                here = address == "auto" and "RAY_ADDRESS" not in os.environ
                try:
                    made = self.ray.init("auto" if here else resolved, **settings)
                except (
                    ConnectionError,
                    RuntimeError,
                    ValueError,
                    self.ray.exceptions.AuthenticationError,
                ) as error:
                    raise ConfigError(
                        f"runtime.address: {address}: {first_line(error)}; a cluster that was "
                        "started with ~/.ray/auth_token needs the same file here, and "
                        "RAY_AUTH_MODE=token"
                    ) from error
            self.log_folder = Path(made.address_info["session_dir"], "logs")
            if terminated and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminated)  # Ray's own prints stacks and aborts
        self._health = RayHealthCheck(self.ray)

    def reserve(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """Reserve one bundle of resources per actor, such as {"CPU": 1, "GPU": 1}.

        Raises ConfigError if the cluster has too few, and StalledError if they are not free within
        `timeout` seconds.
        """
        from ray.util.placement_group import placement_group, placement_group_table

        self._bundles = [{k: v for k, v in bundle.items() if v} for bundle in bundles]
        # Ray refuses an empty bundle; the actor itself may still request no core.
        bundles = [bundle or {"CPU": 0.01} for bundle in self._bundles]
        if lacking := shortage(bundles, self.ray.nodes()):
            raise ConfigError(
                f"runtime: {lacking}; lower runtime.workers, runtime.learners, or the cpus and "
                "gpus that each one asks for"
            )
        self._group = placement_group(bundles)
        self._placement = PlacementCheck(
            bundles,
            state=lambda: str(placement_group_table(self._group)["state"]),
            nodes=self.ray.nodes,
            timeout=self.timeout,
        )
        self.get(self._group.ready(), f"{len(bundles)} places for actors in the cluster")

    def places(self) -> list[str]:
        """Return the name of the node of each reserved bundle, in order; nothing if the cluster has
        one node."""
        from ray.util.placement_group import placement_group_table

        names = node_names(self.ray.nodes(), self.ray.get_runtime_context().get_node_id())
        if len(names) == 1:
            return []
        found = placement_group_table(self._group)["bundles_to_node_id"]
        # A node that was lost in the meantime has no name any more.
        return [names.get(found[index], "a lost node") for index in sorted(found)]

    def gpus(self) -> float:
        """Return the number of GPUs of the cluster."""
        return float(self.ray.cluster_resources().get("GPU", 0.0))

    def store_bytes(self) -> float:
        """Return the smallest object store of a machine of the cluster, in bytes."""
        stores = [
            node["Resources"].get("object_store_memory", 0.0)
            for node in self.ray.nodes()
            if node["Alive"]
        ]
        return float(min(stores, default=0.0))

    def actor(
        self,
        kind: type,
        *,
        bundle: int,
        groups: Mapping[str, int] | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> Any:
        """Start an actor with the resources of a bundle.

        Ray does not restart an actor that dies, because its state would be lost; the caller starts
        another one.

        Args:
            kind: Class of the actor, made without arguments. It is imported, not copied.
            bundle: Index of the bundle.
            groups: Number of threads by name in which methods can be called (`method.options(
                concurrency_group=...)`).
            resources: The actor's part of a bundle that it shares; None: the whole bundle.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        settings = {"concurrency_groups": dict(groups)} if groups else {"max_restarts": 0}
        resources = self._bundles[bundle] if resources is None else resources
        options = {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=bundle
            ),
            "runtime_env": {"env_vars": environment(gpu=resources.get("GPU", 0) > 0)},
        }
        return self.ray.remote(**settings)(kind).options(**options).remote()

    def get(self, refs: Any, what: str) -> Any:
        """Return the value of an object, or of several; `what` describes it in error messages.

        Raises StalledError after `timeout` seconds, RunError if Ray is dead, and the SelfplayError
        of an actor as it is.
        """
        end = time.monotonic() + self.timeout
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                return self.ray.get(refs, timeout=min(TICK, left))
            except self.ray.exceptions.GetTimeoutError as error:
                self.check()
                if left <= TICK:
                    raise StalledError(
                        f"runtime: waited {self.timeout:g} s for {what}; check why the cluster "
                        "is busy, or raise runtime.timeout"
                    ) from error
            except self.ray.exceptions.RayTaskError as error:
                raise selfplay_error(error) from None

    def check(self, *, now: bool = False) -> None:
        """Raise RunError if Ray is dead, or if reserved resources were lost.

        Call it in every wait; it probes only every few seconds. Call it with `now` before a call
        that needs Ray's head: it then probes at once, and waits while the head may return.
        """
        if not (now or self._health.due()):
            return
        alive = self._health.look()
        while now and not alive:
            time.sleep(TICK)
            alive = self._health.look()
        if alive and self._placement is not None:
            self._placement.look()

    def put(self, value: Any) -> Any:
        """Store an object for all processes; return its reference. RunError if Ray is dead."""
        self.check(now=True)
        return self.ray.put(value)

    @property
    def log_hint(self) -> str:
        """End of a line about a lost process, which names the folder of its log if it is known."""
        return f"; its log is in {self.log_folder} on its machine" if self.log_folder else ""

    @property
    def dead(self) -> bool:
        """True if a probe has found Ray dead."""
        return self._health.dead is not None

    def kill(self, actor: Any) -> None:
        """End an actor at once."""
        self.ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Free the reserved resources; end Ray if it was started here, else leave the cluster."""
        # Removing the group would wait for a dead head.
        if self.ray.is_initialized() and self._group is not None and not self.dead:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)
        self._group = None
        if self.connected_here:
            if self.dead:
                self._end_processes()
            self.ray.shutdown()

    def _end_processes(self) -> None:
        """Kill the processes of the Ray that was started here.

        A shutdown would wait for a stopped process.
        """
        node = self.ray._private.worker._global_node
        if node is not None:
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def node_names(nodes: Sequence[Mapping[str, Any]], here: str) -> dict[str, str]:
    """Return a name of each living node by its id.

    It is the node's host name. If several nodes have the same one, their addresses and, if these
    are equal too, the beginnings of their ids follow.

    Args:
        nodes: Nodes as `ray.nodes` describes them.
        here: Id of the node of this process.
    """
    living = [node for node in nodes if node["Alive"]]
    names = {node["NodeID"]: str(node["NodeManagerHostname"]) for node in living}
    for key, length in (("NodeManagerAddress", None), ("NodeID", 8)):
        known = Counter(names.values())
        for node in living:
            name = names[node["NodeID"]]
            if known[name] > 1:
                names[node["NodeID"]] = f"{name} {node[key][:length]}"
    return {each: f"{name} (this one)" if each == here else name for each, name in names.items()}


def selfplay_error(error: Any) -> BaseException:
    """Return the SelfplayError that an actor's method raised, or Ray's own error."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, SelfplayError) else error


def death_reason(error: BaseException) -> str:
    """Return the reason of an actor's death in one line, at most 300 characters.

    Ray's message begins with ids, which would take the place of the reason. Only the number of the
    process, which is part of the name of its log, and the address of its machine are kept of them.
    """
    said = printable(str(error))
    _, _, reason = said.partition("The actor is dead because ")
    if not reason:
        return one_line(error)
    found = re.search(r" pid: (\d+) .*? ip: (\S+) ", said)
    return (f"process {found[1]} on {found[2]}: {reason}" if found else reason)[:300]


def reachable(address: str) -> str:
    """Return host:port of a cluster; raise ConfigError if it takes no connection.

    Ray itself would wait for a minute and then end the process.
    """
    resolved = address
    if address == "auto":
        require_ray()
        from ray._private.utils import read_ray_address

        resolved = os.environ.get("RAY_ADDRESS") or read_ray_address() or ""
        if not resolved:
            raise ConfigError(
                "runtime.address: auto: no cluster was started on this machine; run `ray start "
                "--head` first, give host:port, or leave out the address to start one"
            )
    if "://" in resolved:
        raise ConfigError(
            f"runtime.address: {resolved!r} is for Ray's client; start on a node of the cluster "
            "with auto, or give host:port of the head node"
        )
    host, _, port = resolved.rpartition(":") if ":" in resolved else (resolved, "", str(PORT))
    if not host or not port.isdigit():
        raise ConfigError(f"runtime.address: {address!r} is neither auto nor host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"runtime.address: no Ray cluster at {host}:{port} ({first_line(error)}); start one "
            "with `ray start --head`, or leave out the address to start one here"
        ) from error
    return f"{host}:{port}"


def own_job() -> Any:
    """Return the settings of a job whose actors search for modules where the driver does.

    Ray would search the current folder first. A user who opens a run folder may be in a folder of
    downloads, which may contain a module of any name: see `selfplay.cli.limits`. The folders in
    which the driver searches are sent by `environment`.
    """
    from ray.job_config import JobConfig

    class OwnJob(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # Ray then adds no folder to the search path

    return OwnJob()


def environment(*, gpu: bool = False) -> dict[str, str]:
    """Return the environment variables of actors: module paths, `INHERITED` and `PREFIXES`.

    An actor without a GPU sees no GPU; Ray itself would hide only the GPUs of other actors. An
    actor has the priority of other processes: with Ray's own, 15 steps lower, it would get a
    thirtieth of a core that one busy process also uses.
    """
    installed = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    libraries = [prefix / name for prefix in installed for name in ("lib", "lib64", "local/lib")]
    paths = [Path(path).resolve() for path in sys.path if not path.endswith(NO_FOLDERS)]
    own = [str(path) for path in paths if not any(map(path.is_relative_to, libraries))]
    inherited = {
        name: value
        for name, value in os.environ.items()
        if (name in INHERITED or name.startswith(PREFIXES)) and name not in MACHINE
    }
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(own)),
        NICENESS: os.environ.get(NICENESS, "0"),
        **({} if gpu else {"CUDA_VISIBLE_DEVICES": ""}),
    }
