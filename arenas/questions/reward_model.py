"""A reward model as a verifier: its logit for a question and an answer becomes the score.

The service `RewardModel` holds the network, and the arenas of a run share it. The verifier
`RewardModelVerifier` turns its rewards into scores from 0 to 1, which all arenas with verifiers
need.
"""

from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from hashlib import blake2b
from math import isfinite, tanh
from threading import Lock
from typing import Any, Literal, NamedTuple, get_args

from cachetools import LRUCache

from selfplay.errors import ConfigError, RunError, SettingError, check_choice
from selfplay.models.sequence_scorer import ScoredText, SequenceScorer, check_scorer
from selfplay.types import well_formed

Scale = Literal["sigmoid", "linear"]
REMEMBERED = 65_536
"""Number of pairs of question and answer whose rewards are remembered."""
STEEP = 10.0
"""Absolute reward beyond which the sigmoid is flat: scores differ by less than 0.00005."""
GPU_BATCH = 16
"""Default number of answers of a forward pass on a GPU."""


class _Asked(NamedTuple):
    """A pair of question and answer that waits for its reward."""

    key: bytes
    question: str
    answer: str
    reward: "Future[float | None]"


class RewardModel:
    """Service that holds a reward model: a sequence classifier of transformers with one output.

    The config group `services` makes it, under a name of your choice; `RewardModelVerifier` uses
    it. If its tokenizer has a chat template, the question is the message of the user and the answer
    that of the assistant; without a template they are a pair of texts. Control tokens in them are
    ordinary characters.

    The weights are loaded in each process that plays episodes, before the first one: in the process
    of the run, or in each Ray worker, where `device: auto` is the worker's own GPU. The process
    that starts a run on Ray loads none, unless `runtime.workers` is a mapping: then it plays, and
    needs `device: cpu`.

    Answers of several episodes arrive in threads (`rollout.threads`). Those that arrive during a
    forward pass share the next one, up to `batch`. Equal pairs are scored once while they are
    remembered.
    """

    def __init__(
        self,
        *,
        model: str,
        dtype: str = "float32",
        device: str = "auto",
        batch: int | None = None,
        max_length: int | None = None,
    ) -> None:
        """Args:
        model: Hugging Face name, or folder, of a model with one output (num_labels=1). Its weights
            are read as those of a policy: no code of the folder is run.
        dtype: Type of the weights: float32, bfloat16 or float16.
        device: Device of the model; auto is the GPU if there is one.
        batch: Largest number of answers of one forward pass. None: 16 on a GPU, and 1 on a CPU,
            where larger passes are no faster, and where a reward then never depends on the other
            answers of its pass, not even in its last bits.
        max_length: Largest number of tokens of a question with its answer; None: the limit of the
            model.
        """
        if batch is not None and batch < 1:
            raise ValueError(f"batch is at least 1, not {batch}")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length is at least 1, not {max_length}")
        self._settings: dict[str, Any] = {
            "model": model,
            "dtype": dtype,
            "device": device,
            "batch": batch,
            "max_length": max_length,
        }
        try:
            check_scorer(model, where="model")
        except ConfigError as error:
            raise SettingError(str(error)) from error
        self.where = "services.reward_model"
        """Config key of this service, for errors."""
        self.batch = batch
        self._scorer: SequenceScorer | None = None
        self._lock, self._pass = Lock(), Lock()
        self._waiting: deque[_Asked] = deque()
        self._asked: dict[bytes, Future[float | None]] = {}
        """Pairs that wait for their reward."""
        self._known: LRUCache[bytes, float | None] = LRUCache(REMEMBERED)
        self._counts: Counter[str] = Counter()

    def set_config_key(self, key: str) -> None:
        """Keep the config key of this service in `where`.

        Raises ConfigError for a key outside of `services`: nothing would load the model before the
        first answer, close it, or read its metrics, and each arena would load a copy.
        """
        if key and not key.startswith("services."):
            raise ConfigError(
                f"{key}: a reward model is a service; write it under services.NAME, and set {key} "
                "to services.NAME"
            )
        self.where = key or self.where

    def load_weights(self) -> None:
        """Load the model; a second call does nothing. Raises ConfigError, in one line."""
        with self._pass:
            self._loaded()

    def _loaded(self) -> SequenceScorer:
        if self._scorer is None:
            given = {key: value for key, value in self._settings.items() if key != "batch"}
            self._scorer = SequenceScorer(where=self.where, **given)
            if self.batch is None:
                self.batch = GPU_BATCH if self._scorer.device.type != "cpu" else 1
        return self._scorer

    def reward(self, question: str, answer: str) -> float | None:
        """Return the logit of an answer; None if it is too long together with its question.

        Raises RunError if the logit is not a finite number.
        """
        question, answer = well_formed(question), well_formed(answer)
        name = blake2b(f"{len(question)} {question}{answer}".encode(), digest_size=16)
        key = name.digest()
        with self._lock:
            if key in self._known:
                self._counts["remembered"] += 1
                return self._known[key]
            waiting = self._asked.get(key)
            if waiting is None:
                waiting = self._asked[key] = Future()
                self._waiting.append(_Asked(key, question, answer, waiting))
            else:
                self._counts["remembered"] += 1
        while not waiting.done():
            with self._pass:
                if not waiting.done():
                    self._score()
        return waiting.result()

    def _score(self) -> None:
        """Score the pairs that have waited longest, in one forward pass."""
        asked: list[_Asked] = []
        try:
            scorer = self._loaded()
            with self._lock:
                while self._waiting and len(asked) < (self.batch or 1):
                    asked.append(self._waiting.popleft())
            rewards = self._rewards(scorer, asked)
        except BaseException as error:
            with self._lock:
                if not asked:  # the model cannot be loaded
                    asked, self._waiting = [*self._waiting], deque()
                for each in asked:
                    del self._asked[each.key]
            for each in asked:
                each.reward.set_exception(error)
            return
        with self._lock:
            for each, reward in zip(asked, rewards, strict=True):
                self._known[each.key] = reward
                del self._asked[each.key]
        for each, reward in zip(asked, rewards, strict=True):
            each.reward.set_result(reward)

    def _rewards(self, scorer: SequenceScorer, asked: list[_Asked]) -> list[float | None]:
        texts = [scorer.text(each.question, each.answer) for each in asked]
        fitting: list[ScoredText] = [text for text in texts if text is not None]
        logits = scorer.scores(fitting) if fitting else []
        for logit in logits:
            if not isfinite(logit):
                raise RunError(
                    f"{self.where}: the model {self._settings['model']!r} gives {logit} "
                    f"in {self._settings['dtype']}, which is no reward; try dtype=float32, or "
                    "another model"
                )
        with self._lock:
            self._counts["scored"] += len(fitting)
            self._counts["too_long"] += len(texts) - len(fitting)
            self._counts["passes"] += bool(fitting)
        found = iter(logits)
        return [None if text is None else next(found) for text in texts]

    def count_clipped(self) -> None:
        """Count a reward outside of the range in which scores differ."""
        with self._lock:
            self._counts["clipped"] += 1

    def drain_metrics(self) -> dict[str, int]:
        """Return the numbers of answers by outcome, and of passes, since the last call."""
        with self._lock:
            drained = {name: count for name, count in self._counts.items() if count}
            self._counts.clear()
        return drained

    def close(self) -> None:
        """Release the model; a later use loads it again."""
        with self._pass:
            self._scorer = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "RewardModel":
        """Return this object: copies of an arena share one model."""
        return self

    def __reduce__(self) -> tuple[Any, tuple[()], dict[str, str]]:
        """Return how to make the service again in another process, without its weights."""
        return partial(RewardModel, **self._settings), (), {"where": self.where}


class RewardModelVerifier:
    """Verifier whose score is the reward of a reward model, from 0 to 1.

    It needs no `answer` in the tasks. An answer that is too long for the model has score 0 and is
    counted (`service/reward_model/too_long`): the rest of a cut answer could be anything.
    """

    blocking = True

    def __init__(
        self,
        *,
        reward_model: RewardModel,
        scale: Scale = "sigmoid",
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> None:
        """Args:
        reward_model: The service of this name; a config names another with `services.NAME`.
        scale: Function from reward to score. sigmoid: 1 / (1 + exp(-reward)), which for a model of
            Bradley and Terry is the probability that the answer is better than one of reward 0.
            linear: (reward - minimum) / (maximum - minimum), with rewards outside of the bounds set
            to the nearest bound. `service/reward_model/clipped` counts rewards outside of the
            bounds, or below -10 and above 10 of the sigmoid, which is flat there.
        minimum: Reward of score 0, for the linear scale.
        maximum: Reward of score 1, for the linear scale.
        """
        check_choice("scale", scale, get_args(Scale))
        self.scale, self.bounds = scale, (-STEEP, STEEP)
        if scale == "linear":
            if minimum is None or maximum is None:
                raise ValueError("scale: linear needs minimum and maximum, two rewards")
            if not (isfinite(minimum) and isfinite(maximum) and minimum < maximum):
                raise ValueError(
                    f"minimum is below maximum, and both are finite, not {minimum} and {maximum}"
                )
            self.bounds = minimum, maximum
        elif minimum is not None or maximum is not None:
            raise ValueError("minimum and maximum belong to scale: linear")
        self.reward_model = reward_model

    def __call__(self, answer: str, payload: Mapping[str, Any]) -> float:
        """Return the score; raises ConfigError for a task without a question."""
        if "question" not in payload:
            raise ConfigError(
                "verifier: RewardModelVerifier needs a 'question' in every task; use a curriculum "
                "of questions, or another verifier"
            )
        reward = self.reward_model.reward(str(payload["question"]), answer)
        if reward is None:
            return 0.0
        minimum, maximum = self.bounds
        if not minimum <= reward <= maximum:
            self.reward_model.count_clipped()
        if self.scale == "sigmoid":
            return 0.5 + 0.5 * tanh(reward / 2)
        return min(max((reward - minimum) / (maximum - minimum), 0.0), 1.0)
