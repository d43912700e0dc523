"""State of the completions in flight, and sampling of their next tokens.

The state is on the CPU. The model's device holds only the logits, and adds up probabilities.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from selfplay.engines.stop_strings import StopMatcher
from selfplay.engines.truncation import truncate
from selfplay.errors import DivergedError
from selfplay.types import Completion, Request, StopReason, Versions

BLOCK = 256
"""Number of tokens of a block of the vocabulary in `inverse`."""
STATE = (
    "row",
    "inputs",
    "tokens",
    "logprobs",
    "uniforms",
    "setting",
    "count",
    "allowed",
    "ended",
)
"""Names of the tensors with one entry per completion."""


class DecodingRows:
    """Completions in flight, and the row of the key-value cache that each of them reads.

    Completions with equal histories (prompt and tokens so far) share a row of the cache, and so one
    row of the forward pass, until their samples differ: `regroup` then splits the row. Each
    completion has its own random stream. It stays after its last token until `collect` removes it.
    """

    def __init__(self, end_ids: Sequence[int]) -> None:
        self.requests: list[Request] = []
        self.end_ids = frozenset(end_ids)
        self._end = torch.tensor(sorted(end_ids))
        # Per completion: its row of the cache; the next input token; the sampled tokens, padded;
        # their log-probabilities in nats; one uniform number per token; the index of its sampling
        # settings; the number of sampled tokens and its maximum; True after the last token.
        self.row = torch.zeros(0, dtype=torch.long)
        self.inputs = torch.zeros(0, dtype=torch.long)
        self.tokens = torch.zeros(0, 0, dtype=torch.long)
        self.logprobs = torch.zeros(0, 0)
        self.uniforms = torch.zeros(0, 0, dtype=torch.float64)
        self.setting = torch.zeros(0, dtype=torch.long)
        self.count = torch.zeros(0, dtype=torch.long)
        self.allowed = torch.zeros(0, dtype=torch.long)
        self.ended = torch.zeros(0, dtype=torch.bool)
        self.stamped: list[Versions] = []
        """Per completion, versions of the tokens sampled before the last change of weights."""
        self.settings: dict[tuple[float, ...], int] = {}
        """Index of the sampling settings: temperature (0: greedy), top_p, top_k, min_p."""
        self.examples: list[Request] = []
        """A request with each of the sampling settings."""
        self.matchers: dict[int, StopMatcher] = {}
        """Matcher by the id of its request, for requests with stop strings."""

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, requests: Sequence[Request], rows: Sequence[int]) -> None:
        """Append one completion per request, each with its row of the cache."""
        width = max(self.tokens.shape[1], *(request.max_tokens for request in requests))
        uniforms = np.zeros((len(requests), width))
        for row, request in enumerate(requests):
            stream = np.random.Generator(np.random.Philox(request.seed))
            uniforms[row, : request.max_tokens] = stream.random(request.max_tokens)
        if not self.requests:  # no completion refers to the earlier settings
            self.settings, self.examples = {}, []
        settings = [self._setting(request) for request in requests]
        self.requests += requests
        self.matchers |= {each.id: StopMatcher(each) for each in requests if each.stop}
        self.stamped += [()] * len(requests)
        self.uniforms = self._appended(self.uniforms, torch.from_numpy(uniforms))
        self.tokens = self._appended(self.tokens, torch.zeros(len(requests), width))
        self.logprobs = self._appended(self.logprobs, torch.zeros(len(requests), width))
        self.row = self._appended(self.row, torch.tensor(rows))
        self.inputs = self._appended(self.inputs, torch.zeros(len(requests)))
        self.count = self._appended(self.count, torch.zeros(len(requests)))
        self.ended = self._appended(self.ended, torch.zeros(len(requests)))
        allowed = [request.max_tokens for request in requests]
        self.allowed = self._appended(self.allowed, torch.tensor(allowed))
        self.setting = self._appended(self.setting, torch.tensor(settings))

    def _setting(self, request: Request) -> int:
        """Return the index of a request's sampling settings."""
        key = (request.temperature, request.top_p, request.top_k, request.min_p)
        if key not in self.settings:
            self.settings[key] = len(self.examples)
            self.examples.append(request)
        return self.settings[key]

    @staticmethod
    def _appended(state: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        if state.ndim == 2:
            state = torch.nn.functional.pad(state, (0, new.shape[1] - state.shape[1]))
        return torch.cat([state, new.to(state)])

    def draw(self, logits: torch.Tensor, sources: torch.Tensor, first: int = 0) -> None:
        """Sample one token for every completion from index `first` on.

        Each distribution, which is a row of logits with sampling settings, is computed once. The
        log-probability of a token is that of the distribution it was drawn from, with temperature
        and truncation; it is 0 for a greedy token.

        Args:
            logits: [rows, vocabulary] logits of distinct histories.
            sources: [completions] row of the logits of each of these completions.
            first: Index of the first of them.

        Raises DivergedError with the policy's name for probabilities that are not finite.
        """
        rows, device = slice(first, None), logits.device
        keys = sources.cpu() * len(self.examples) + self.setting[rows]
        found, distribution = keys.unique(return_inverse=True)
        examples = [self.examples[key] for key in (found % len(self.examples)).tolist()]
        logits = logits[(found // len(self.examples)).to(device)].float()
        temperature = torch.tensor([example.temperature for example in examples])
        scale = torch.where(temperature == 0, 1.0, temperature).to(device)
        logprobs = truncate((logits / scale[:, None]).log_softmax(-1), logits, examples)
        at = self.count[rows].clone()
        index = torch.arange(len(at))
        try:
            drawn = inverse(logprobs.exp(), self.uniforms[rows][index, at], distribution)
        except FloatingPointError as error:
            broken = (~logprobs.exp().sum(-1).isfinite()).cpu()[distribution]
            diverged = self.requests[first + int(broken.nonzero()[0, 0])]
            raise DivergedError(
                f"policy {diverged.policy!r}: its weights give probabilities that are "
                "not finite; resume from an earlier checkpoint with a lower learning rate"
            ) from error
        greedy = temperature[distribution] == 0
        chosen = torch.where(greedy, logits.argmax(-1).cpu()[distribution], drawn)
        nats = logprobs[distribution.to(device), chosen.to(device)].cpu()
        nats = torch.where(greedy, 0.0, nats)
        self.tokens[rows][index, at] = chosen
        self.logprobs[rows][index, at] = nats
        self.count[rows] += 1
        self.inputs[rows] = chosen
        stopped = torch.isin(chosen, self._end)
        if self.matchers:
            stopped |= torch.tensor(self._matched(first, chosen.tolist()))
        self.ended[rows] |= stopped | (self.count[rows] >= self.allowed[rows])

    def _matched(self, first: int, chosen: list[int]) -> list[bool]:
        """Return, for each completion from `first` on, True if a stop string ends with its new
        token."""
        matchers = [self.matchers.get(request.id) for request in self.requests[first:]]
        return [
            matcher is not None and matcher.ends(token)
            for matcher, token in zip(matchers, chosen, strict=True)
        ]

    def histories(self) -> torch.Tensor:
        """Return [completions] numbers: equal for equal histories, ascending by row of the cache.

        The tokens before the latest one are those of the row.
        """
        return (self.row << 32) + self.inputs

    def regroup(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Give each distinct history one row of the cache; all completions must be in flight.

        Rows without a completion are filled first. A row that is not split keeps its index,
        except the last rows, which fill gaps.

        Returns [rows] the old row that each new row continues, and [rows] its next input token.
        """
        found, group = self.histories().unique(return_inverse=True)
        member = torch.zeros_like(found).scatter_(0, group, torch.arange(len(group)))
        rows, inputs = self.row[member], self.inputs[member]
        stays = (rows.diff(prepend=torch.tensor([-1])) != 0) & (rows < len(rows))
        gaps = torch.ones(len(rows), dtype=torch.bool)
        gaps[rows[stays]] = False
        new = torch.empty_like(rows)
        new[stays], new[~stays] = rows[stays], gaps.nonzero()[:, 0]
        self.row = new[group]
        order = new.argsort()
        return rows[order], inputs[order]

    def computed(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """Return, by policy, the tokens that each row of a completion that has ended holds in the
        cache.

        A completion in flight during a change of weights is left out.
        """
        done = self.ended.nonzero()[:, 0]
        states = (self.row, self.count, self.tokens)
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        for index, row, count, tokens in zip(
            done.tolist(), *(state[done].tolist() for state in states), strict=True
        ):
            request = self.requests[index]
            rows = found.setdefault(request.policy, {})
            if row not in rows and not self.stamped[index]:
                rows[row] = (*request.prompt_ids, *tokens[: count - 1])
        return found

    def stamp(self, policy: str, version: int) -> None:
        """Record the version that sampled a policy's tokens since the last call for the policy."""
        for index, request in enumerate(self.requests):
            if request.policy == policy:
                self.stamped[index] = self._spans(index, version, int(self.count[index]))

    def _spans(self, index: int, version: int, count: int) -> Versions:
        """Return the versions of the `count` tokens of a completion; `version` sampled the latest
        ones."""
        spans = self.stamped[index]
        if not spans:
            return ((version, count),) if count else ()
        tokens = count - sum(said for _, said in spans)
        if spans and spans[-1][0] == version:
            *before, (_, said) = spans
            return (*before, (version, said + tokens))
        return (*spans, (version, tokens)) if tokens else spans

    def collect(self, versions: Mapping[str, int]) -> list[tuple[str, Completion]]:
        """Remove and return the completions that have ended, each with its policy.

        Args:
            versions: The version by policy that sampled the tokens since the last `stamp`.
        """
        done = self.ended.nonzero()[:, 0]
        states = (self.count, self.tokens, self.logprobs)
        completions = []
        for index, count, tokens, logprobs in zip(
            done.tolist(), *(state[done].tolist() for state in states), strict=True
        ):
            ids, request = tuple(tokens[:count]), self.requests[index]
            spans = self._spans(index, versions[request.policy], count)
            matcher = self.matchers.pop(request.id, None)
            stopped = ids[-1] in self.end_ids or (matcher is not None and bool(matcher.found))
            done_now = Completion(
                id=request.id,
                completion_ids=ids,
                logprobs=tuple(logprobs[:count]),
                stop_reason=StopReason.STOP if stopped else StopReason.LENGTH,
                version=spans[0][0],
                versions=spans if len(spans) > 1 else (),
            )
            completions.append((request.policy, done_now))
        kept = (~self.ended).nonzero()[:, 0]
        self.requests = [self.requests[index] for index in kept.tolist()]
        self.stamped = [self.stamped[index] for index in kept.tolist()]
        for name in STATE:
            setattr(self, name, getattr(self, name)[kept])
        return completions


def inverse(
    chances: torch.Tensor, uniforms: torch.Tensor, distribution: torch.Tensor
) -> torch.Tensor:
    """Return [N] tokens: the inverse of a distribution function at each uniform number.

    Selects a block of tokens first, then a token of that block, because cumulative sums over a
    whole vocabulary are slow, and not deterministic on a GPU. A token of probability 0 is never
    selected.

    Args:
        chances: [rows, vocabulary] probabilities of each distribution.
        uniforms: [N] numbers from [0, 1).
        distribution: [N] row of `chances` for each number.

    Raises FloatingPointError for probabilities that are not finite.
    """
    width = -(-chances.shape[1] // BLOCK) * BLOCK
    blocks = torch.nn.functional.pad(chances, (0, width - chances.shape[1]))
    blocks = blocks.unflatten(1, (-1, BLOCK))
    ends = blocks.sum(-1, dtype=torch.float64).cpu().cumsum(-1)
    if not bool(ends[:, -1].isfinite().all()):
        raise FloatingPointError("probabilities that are not finite")
    ends = ends[distribution]
    targets = _below(uniforms * ends[:, -1], ends[:, -1])
    block = torch.searchsorted(ends, targets[:, None], right=True)[:, 0]
    starts = torch.nn.functional.pad(ends, (1, 0))[torch.arange(len(ends)), block]
    selected = blocks[distribution.to(blocks.device), block.to(blocks.device)]
    inside = selected.double().cpu().cumsum(-1)
    rest = _below(targets - starts, inside[:, -1])
    return block * BLOCK + torch.searchsorted(inside, rest[:, None], right=True)[:, 0]


def _below(values: torch.Tensor, limits: torch.Tensor) -> torch.Tensor:
    """Return `values`; one that rounding raised to its limit becomes the next lower number."""
    return torch.minimum(values, torch.nextafter(limits, torch.zeros_like(limits)))
