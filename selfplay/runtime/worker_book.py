"""The metrics of workers between two steps of a run."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class WorkerBook:
    """Metrics of workers since they were last read."""

    deaths: int = 0
    """Number of worker deaths."""
    resubmitted: int = 0
    """Number of jobs that were played, or requests that were sent, again."""
    elsewhere: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Metrics of the workers' services and engines by name."""

    def add(self, counts: Mapping[str, float]) -> None:
        """Add a worker's metrics; of differences, keep the largest."""
        for name, value in counts.items():
            known = self.elsewhere[name]
            largest = name.endswith("difference")
            self.elsewhere[name] = max(known, value) if largest else known + value
