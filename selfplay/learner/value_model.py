"""A critic: a transformer that predicts the return to go from a token sequence."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfplay.credit.base import FloatVector
from selfplay.errors import DivergedError
from selfplay.models.policy import load_model
from selfplay.models.position_limits import reach
from selfplay.models.tiny import build_model


class TransformerCritic:
    """The decoder of a causal language model with a value head on its last token, and its AdamW.

    `credit.gae` reads and trains it. The head begins at zero: before its first update the critic
    predicts 0 for everything, so that training begins as it would without a critic.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        vocabulary: int = 512,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 2,
        positions: int = 1024,
        lr: float = 1e-3,
        epochs: int = 1,
        clip: float = 0.0,
        clip_norm: float = 1.0,
        max_tokens: int = 16_384,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        """Args:
        model: Hugging Face name or folder whose decoder is copied; None makes a fresh one.
        vocabulary: Rows of a fresh decoder's embedding. Larger token ids share them (modulo its
            size), so that no text can stop a run; set it to the largest vocabulary of a policy.
        hidden: Width of a fresh decoder.
        layers: Layers of a fresh decoder.
        heads: Attention heads of a fresh decoder.
        positions: Context length in tokens; only the last tokens of a longer state are read.
        lr: AdamW's learning rate. 1e-3 suits a fresh small decoder, 1e-5 a copied large one.
        epochs: Number of optimizer steps per batch of returns.
        clip: Largest change of a value in one batch; beyond it, a further change does not lower the
            loss (PPO: 0.5). 0: no limit.
        clip_norm: Largest gradient norm.
        max_tokens: Largest number of tokens of one forward pass, with padding.
        device: Device of the critic; auto is the GPU if there is one.
        seed: Seed of the weights.
        """
        if min(vocabulary, hidden, layers, heads, positions, epochs, max_tokens) < 1:
            raise ValueError("sizes, epochs and max_tokens must be at least 1")
        if hidden % (2 * heads):
            raise ValueError(f"hidden={hidden} does not split into {heads} heads of even width")
        if not (0 < lr < math.inf and 0 <= clip < math.inf and 0 < clip_norm < math.inf):
            raise ValueError(
                "lr and clip_norm must be finite and above 0, clip finite and at least 0"
            )
        self.epochs, self.clip, self.clip_norm = epochs, clip, clip_norm
        self.max_tokens, self._folded = max_tokens, 0
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        # A new head and a loaded model use random numbers; the run's own stream must not advance.
        with torch.random.fork_rng(devices=[]):
            whole: PreTrainedModel = (
                load_model(model, where="credit.critic.model", dtype="float32")
                if model
                else build_model(
                    vocabulary,
                    seed=seed,
                    hidden=hidden,
                    layers=layers,
                    heads=heads,
                    intermediate=3 * hidden,
                    positions=positions,
                )
            )
            sizes = whole.config.get_text_config()
            self.head = torch.nn.Linear(sizes.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.trunk = whole.base_model.eval()
        self._reach = reach(whole)
        self.vocabulary = sizes.vocab_size
        longest = self._reach.longest
        limits = [
            getattr(sizes, "max_position_embeddings", None),
            None if longest is None else longest.tokens,
        ]
        self.positions = min((limit for limit in limits if limit), default=0)
        """Largest number of tokens of a state that are read; 0: all."""
        self.network = torch.nn.ModuleList([self.trunk, self.head]).to(device)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.0)

    def values(self, states: Sequence[tuple[int, ...]]) -> list[float]:
        """Return the predicted return to go of each state; equal states are read once.

        A state is the sequence of token ids before a turn; only its last `positions` tokens count.
        """
        distinct = self._distinct(states)
        by_state: dict[tuple[int, ...], float] = {}
        with torch.no_grad():
            for rows in self._batches(list(distinct)):
                by_state |= zip(rows, self._read(rows).tolist(), strict=True)
        values = {
            index: by_state[state] for state, indices in distinct.items() for index in indices
        }
        return [values[index] for index in range(len(states))]

    def fit(self, states: Sequence[tuple[int, ...]], returns: Sequence[float]) -> dict[str, float]:
        """Make `epochs` optimizer steps that move the values of states towards returns to go.

        Args:
            states: Token ids before each turn; without any, nothing is done.
            returns: The return to go of each state.
        Returns:
            Metrics. `critic/loss`: the mean of (V - R)^2 / 2 before the update.
            `critic/folded_tokens`: the number of tokens of distinct states that are beyond the
            vocabulary. `critic/explained_variance`: 1 - var(R - V) / var(R), which is 1 for a
            perfect critic and 0 for a constant one; it is missing if all returns are equal.
        Raises:
            DivergedError: If the loss or a gradient is not finite; the failed optimizer step has
                then written nothing.
        """
        if not states:
            return {}
        distinct, wanted = self._distinct(states), np.array(returns, dtype=np.float64)
        self._folded = 0
        old = self._step(distinct, wanted)
        for _ in range(self.epochs - 1):
            self._step(distinct, wanted, old)
        metrics = {
            "critic/loss": float(np.square(old - wanted).mean() / 2),
            "critic/folded_tokens": self._folded / self.epochs,
        }
        if wanted.var() > 1e-12:
            unexplained = float((wanted - old).var() / wanted.var())
            metrics["critic/explained_variance"] = 1 - unexplained
        return metrics

    def _step(
        self,
        distinct: Mapping[tuple[int, ...], Sequence[int]],
        returns: FloatVector,
        old: FloatVector | None = None,
    ) -> FloatVector:
        """Make one optimizer step on all states. Returns the values before it.

        The denominator is that of the whole batch, so that the cut into forward passes has no
        effect.
        """
        self.optimizer.zero_grad(set_to_none=True)
        predicted = np.empty_like(returns)
        for rows in self._batches(list(distinct)):
            indices = [index for state in rows for index in distinct[state]]
            counts = torch.tensor([len(distinct[state]) for state in rows])
            read = self._read(rows)
            values = read.repeat_interleave(counts.to(read.device))
            predicted[indices] = values.detach().cpu().numpy()
            wanted = read.new_tensor(returns[indices])
            error = (values - wanted).square()
            if self.clip and old is not None:
                start = read.new_tensor(old[indices])
                bounded = start + (values - start).clamp(-self.clip, self.clip)
                error = torch.maximum(error, (bounded - wanted).square())
            loss = error.sum() / (2 * len(returns))
            if not torch.isfinite(loss):
                raise DivergedError(f"the critic's loss is {loss.item()}; lower its learning rate")
            loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm))
        if not math.isfinite(norm):
            raise DivergedError(f"the critic's gradient norm is {norm}; lower its learning rate")
        self.optimizer.step()
        return predicted

    def _distinct(self, states: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
        """Return the distinct states, cut to the context length, each with its indices."""
        indices: dict[tuple[int, ...], list[int]] = {}
        for index, state in enumerate(states):
            indices.setdefault(tuple(state[-self.positions :]) or (0,), []).append(index)
        return indices

    def _batches(self, states: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Yield states of similar lengths, at most `max_tokens` padded tokens together.

        All states of a batch are on one side of the length at which the decoder changes its rotary
        frequencies (`ContextReach.frequency_change`).
        """
        rows: list[tuple[int, ...]] = []
        for state in sorted(states, key=len, reverse=True):
            crosses = bool(rows) and self._reach.far(len(rows[0])) != self._reach.far(len(state))
            if crosses or (rows and (len(rows) + 1) * len(rows[0]) > self.max_tokens):
                yield rows
                rows = []
            rows.append(state)
        if rows:
            yield rows

    def _read(self, rows: Sequence[tuple[int, ...]]) -> Tensor:
        """Return [B] values; rows are padded on the right and read at their last tokens."""
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
        self._folded += int((ids >= self.vocabulary).sum())
        device = self.head.weight.device
        attention = torch.arange(ids.shape[1])[None] < lengths[:, None]
        out = self.trunk(
            input_ids=(ids % self.vocabulary).to(device),
            attention_mask=attention.long().to(device),
            use_cache=False,
        )
        last = out.last_hidden_state[torch.arange(len(rows)), (lengths - 1).to(device)]
        values: Tensor = self.head(last)[:, 0]
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return weights and optimizer."""
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
