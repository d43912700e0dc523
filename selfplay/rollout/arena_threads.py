"""Threads in which arenas advance while engines sample."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from selfplay.rollout.episode_runner import EpisodeRunner


class ArenaThreads:
    """Threads that advance the episodes whose stage is complete.

    They do so during the engines' steps if the arenas wait for external work (`Arena.blocking`).

    The order in which `take` returns episodes, and how many it returns, depends on counts alone and
    never on the time that an arena takes. Requests thus reach the engines in the same order, and in
    the same batches, in every repetition.
    """

    def __init__(self, threads: int, *, overlap: float) -> None:
        """Args:
        threads: Number of arenas that advance at once if `Arena.blocking`.
        overlap: Largest fraction of the episodes that may advance while engines sample.
        """
        self.threads, self.overlap = threads, overlap
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="advance")
        self._runners: deque[tuple[EpisodeRunner, Future[None] | None]] = deque()
        self.waiting: set[EpisodeRunner] = set()
        """Runners of the episodes that advance in threads."""

    def close(self) -> None:
        """Wait for the episodes that advance, and end the threads."""
        self._pool.shutdown(cancel_futures=True)

    def __len__(self) -> int:
        """Return the number of episodes that advance or wait to go on."""
        return len(self._runners)

    def __contains__(self, runner: EpisodeRunner) -> bool:
        return runner in self.waiting

    def begin(self, runners: Sequence[EpisodeRunner]) -> None:
        """Advance episodes with all moves of a stage: at once, or in threads if arenas wait."""
        blocking = bool(runners) and runners[0].arena.blocking
        for runner in runners:
            if blocking:
                self._runners.append((runner, self._pool.submit(runner.advance)))
                self.waiting.add(runner)
            else:
                runner.advance()
                self._runners.append((runner, None))

    def take(self, *, live: int, begun: int, idle: bool) -> list[EpisodeRunner]:
        """Return the episodes that go on now, the oldest first; wait until they have advanced.

        Episodes may stay in the threads up to a limit: the fraction `overlap` of the episodes that
        the engines have begun to sample, or the number of threads if that is more, but never more
        than the fraction `overlap` of the live episodes. With a higher limit, new episodes would
        begin and displace the keys and values of these episodes from the engines' caches.

        Args:
            live: Number of episodes in memory that have not ended.
            begun: Number of those that engines have begun to sample.
            idle: True if no engine has anything to sample; then all episodes go on.
        """
        most = min(int(self.overlap * live), max(int(self.overlap * begun), self.threads))
        if idle:
            most = 0
        going: list[EpisodeRunner] = []
        while self._runners and (len(self.waiting) > most or self._runners[0][1] is None):
            runner, future = self._runners.popleft()
            if future is not None:
                future.result()
                self.waiting.remove(runner)
            going.append(runner)
        return going
