"""The metrics of workers between two steps of a run."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class WorkerMetrics:
    """Metrics of workers since they were last read.

    `EngineWorkerGroup` fills it with the results of the workers, and reads it once per step.
    """

    deaths: int = 0
    """Number of worker deaths."""
    resubmitted: int = 0
    """Number of episodes or requests that were sent again."""
    by_name: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Metrics of the workers' services and engines by name."""

    def add(self, counts: Mapping[str, float]) -> None:
        """Add the metrics of a worker. A metric named `...difference` keeps its largest value."""
        for name, value in counts.items():
            known = self.by_name[name]
            largest = name.endswith("difference")
            self.by_name[name] = max(known, value) if largest else known + value
