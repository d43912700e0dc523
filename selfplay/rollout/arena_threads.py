"""Threads in which arenas advance while engines sample."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from selfplay.rollout.episode_runner import EpisodeRunner


class ArenaThreads:
    """Advances the games whose stage is complete, during the engines' steps if the arenas wait.

    The order in which `take` returns games, and how many it returns, depends on counts alone and
    never on the time that an arena takes. Requests thus reach the engines in the same order, and in
    the same batches, in every repetition.
    """

    def __init__(self, threads: int, *, overlap: float) -> None:
        """Args:
        threads: Number of arenas that advance at once if `Arena.blocking`.
        overlap: Largest fraction of the games that may advance while engines sample.
        """
        self.threads, self.overlap = threads, overlap
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="advance")
        self._games: deque[tuple[EpisodeRunner, Future[None] | None]] = deque()
        self.waiting: set[EpisodeRunner] = set()
        """Games that advance in threads."""

    def close(self) -> None:
        """Wait for the games that advance, and end the threads."""
        self._pool.shutdown(cancel_futures=True)

    def __len__(self) -> int:
        """Return the number of games that advance or wait to go on."""
        return len(self._games)

    def __contains__(self, game: EpisodeRunner) -> bool:
        return game in self.waiting

    def begin(self, games: Sequence[EpisodeRunner]) -> None:
        """Advance games that have all their moves: in threads, or at once if they do not wait."""
        blocking = bool(games) and games[0].arena.blocking
        for game in games:
            if not blocking:
                game.advance()
            future = self._pool.submit(game.advance) if blocking else None
            self._games.append((game, future))
            if blocking:
                self.waiting.add(game)

    def take(self, *, live: int, begun: int, idle: bool) -> list[EpisodeRunner]:
        """Return the games that go on now, the oldest first; wait until they have advanced.

        Games may stay in the threads up to a limit: the fraction `overlap` of the games that the
        engines have begun to sample, or the number of threads if that is more, but never more than
        the fraction `overlap` of the live games. With a higher limit, new games would begin and
        displace the keys and values of these games from the engines' caches.

        Args:
            live: Number of games in memory that have not ended.
            begun: Number of those that engines have begun to sample.
            idle: True if no engine has anything to sample; then all games go on.
        """
        most = min(int(self.overlap * live), max(int(self.overlap * begun), self.threads))
        if idle:
            most = 0
        going: list[EpisodeRunner] = []
        while self._games and (len(self.waiting) > most or self._games[0][1] is None):
            game, future = self._games.popleft()
            if future is not None:
                future.result()
                self.waiting.remove(game)
            going.append(game)
        return going
