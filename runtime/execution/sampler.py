"""Chooses the next token of every request of a step. Knows parameters and logits, nothing of time.

In order, for each row: raw log-probabilities if they were asked for; repetition, frequency and
presence penalties; logit_bias; the ban on end tokens before min_tokens; the mask; then the likeliest token
(temperature 0 or top_k 1, the lowest id among equals), or a draw after temperature, top_k, top_p and
min_p. A row's token depends on its own logits, parameters and history, not on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..request import SamplingParams, TokenLogprobs
from .logprobs import prompt_logprobs, token_logprobs
from .penalties import Penalties
from .randomness import MASK, derive_seed, uniform
from .ranking import best
from .truncation import Cuts, DrawRows, draw

__all__ = ["NO_TOKEN", "SampledTokens", "Sampler", "derive_seed", "prompt_logprobs"]

NO_TOKEN = -1

Masks = tuple[Sequence[int], NDArray[np.bool_]]

_TABLE = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float32),
        ("seed", np.uint64),
        ("num_sampled", np.int64),
        ("min_tokens", np.int64),
        ("num_logprobs", np.int64),
        ("greedy", np.bool_),
        ("penalties", np.bool_),
        ("bias", np.bool_),
    ]
)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What one call sampled, row by row.

    Attributes:
        token_ids: one id per row, NO_TOKEN where there is an error.
        logprobs: of the rows that asked for them, None for the others.
        errors: row -> why no token could be sampled there; such a row's request cannot go on.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Additions:
    """Values to be added to some logits of one row: `[n]` int64 ids, `[n]` float32 values."""

    ids: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Batch:
    """What is the same in every step of the same requests; dims: n rows.

    Attributes:
        request_ids: whose row each is.
        slots: `[n]`, their rows of the sampler's table.
        drawn: the rows that are not greedy; `seeds` and `cuts` are of these.
        penalized, biased, scored: the rows with penalties, with a bias, and with log-probabilities.
        min_tokens: `[n]` of the rows; None if no row has end tokens banned.
        num_top: of the scored rows, how many tokens to list.
    """

    request_ids: list[str]
    slots: NDArray[np.int64]
    drawn: NDArray[np.int64]
    seeds: NDArray[np.uint64]
    cuts: Cuts
    penalized: list[int]
    biased: list[int]
    scored: list[int]
    min_tokens: NDArray[np.int64] | None
    num_top: list[int]


class Sampler:
    """Samples for many requests with different parameters at once.

    A request is added once and keeps its place, its counts and its random stream until it is
    removed, whatever steps it takes part in.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        eos_token_ids: tuple[int, ...],
        draw_rows: DrawRows | None = None,
    ) -> None:
        """Prepare for logits of `vocab_size` columns on `device`.

        Args:
            vocab_size: columns of the logits.
            device: where they are.
            eos_token_ids: the model's end tokens; those outside the vocabulary never come up.
            draw_rows: draws rows without top-k or top-p more quickly than torch, if given.
        """
        self._vocab_size = vocab_size
        self._device = device
        self._eos_token_ids = tuple(id_ for id_ in eos_token_ids if 0 <= id_ < vocab_size)
        self._draw_rows = draw_rows
        self._table = np.zeros(0, dtype=_TABLE)
        self._slots: dict[str, int] = {}
        self._newest: _Batch | None = None
        self._free: list[int] = []
        self._penalties = Penalties(vocab_size, device)
        self._biases: dict[str, _Additions] = {}
        self._bans: dict[str, _Additions] = {}

    @torch.inference_mode()
    def add(
        self,
        request_id: str,
        params: SamplingParams,
        prompt_ids: NDArray[np.int32],
        seed: int,
    ) -> None:
        """Take in a request that has sampled nothing yet.

        Args:
            request_id: not added yet.
            params: its parameters; `params.seed` is not read.
            prompt_ids: `[num_prompt_tokens]` int32.
            seed: of its random stream; any integer, of which the low 64 bits count.

        Raises:
            ValueError: it was added before, or a prompt id lies outside the vocabulary.
            InvalidRequest: an id in `params` lies outside the vocabulary.
        """
        if request_id in self._slots:
            raise ValueError(f"request {request_id!r} was added before")
        params.check_vocabulary(self._vocab_size)
        if params.needs_penalties:
            self._penalties.add(request_id, params, prompt_ids)
        if params.logit_bias:
            self._biases[request_id] = self._additions(params.logit_bias)
        banned = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids)}
        if params.min_tokens and banned:
            self._bans[request_id] = self._additions(dict.fromkeys(sorted(banned), -np.inf))
        if not self._free:
            self._grow()
        self._newest = None
        self._slots[request_id] = slot = self._free.pop()
        self._table[slot] = self._row(request_id, params, seed)

    def remove(self, request_id: str) -> None:
        """Forget a request.

        Raises:
            KeyError: it is not known.
        """
        self._free.append(self._slots.pop(request_id))
        self._newest = None
        self._penalties.remove(request_id)
        self._biases.pop(request_id, None)
        self._bans.pop(request_id, None)

    @torch.inference_mode()
    def record_forced(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Count tokens as sampled that had no alternative, as if `sample` had chosen them."""
        self._table["num_sampled"][self._slots[request_id]] += len(token_ids)
        if request_id in self._penalties:
            for token_id in token_ids:
                self._penalties.record([request_id], [token_id])

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, request_ids: Sequence[str], masks: Masks | None = None
    ) -> SampledTokens:
        """Choose one token per row, and count it as sampled.

        A row whose logits leave no choice (NaN, or nothing above minus infinity) gets an error and
        counts nothing.

        Args:
            logits: `[num_rows, vocab_size]` float32 on the sampler's device; not modified.
            request_ids: whose row each is; no request twice.
            masks: some of the rows, and `[len(rows), vocab_size]` bool: which tokens these may take.

        Raises:
            ValueError: the logits have another shape or dtype, or a request comes twice.
            KeyError: a request is not known.
        """
        shape = (len(request_ids), self._vocab_size)
        if tuple(logits.shape) != shape or logits.dtype != torch.float32:
            raise ValueError(
                f"logits must be {list(shape)} float32, not {list(logits.shape)} {logits.dtype}"
            )
        if not request_ids:
            return SampledTokens([], [])
        batch = self._batch(request_ids)
        num_sampled = self._table["num_sampled"][batch.slots]
        adjusted = self._masked(self._adjust(logits, batch, num_sampled), logits, masks)
        scores, chosen = best(adjusted)
        if batch.drawn.size:
            chosen[batch.drawn] = self._draw(adjusted, batch, num_sampled[batch.drawn])
        token_ids: list[int] = chosen.tolist()
        usable = np.isfinite(scores)
        errors: dict[int, str] = {}
        if not usable.all():
            errors = dict.fromkeys(np.flatnonzero(~usable).tolist(), _NO_CHOICE)
            token_ids = [NO_TOKEN if i in errors else id_ for i, id_ in enumerate(token_ids)]
        self._record(batch, token_ids, errors)
        return SampledTokens(token_ids, self._logprobs(logits, batch, token_ids, errors), errors)

    def _batch(self, request_ids: Sequence[str]) -> _Batch:
        """The rows' parameters, gathered anew only where other requests came before."""
        newest = self._newest
        if newest is not None and newest.request_ids == request_ids:
            return newest
        if len(set(request_ids)) != len(request_ids):
            raise ValueError("a request comes twice in one step")
        slots = np.array([self._slots[request_id] for request_id in request_ids])
        table = self._table[slots]
        drawn = np.flatnonzero(~table["greedy"])
        cuts = Cuts(
            temperature=self._column(table["temperature"][drawn]),
            top_k=self._column(table["top_k"][drawn]),
            top_p=self._column(table["top_p"][drawn]),
            min_p=self._column(table["min_p"][drawn]),
            uniform=torch.empty(0, dtype=torch.float64, device=self._device),
        )
        scored = np.flatnonzero(table["num_logprobs"] >= 0)
        self._newest = _Batch(
            request_ids=list(request_ids),
            slots=slots,
            drawn=drawn,
            seeds=table["seed"][drawn],
            cuts=cuts,
            penalized=np.flatnonzero(table["penalties"]).tolist(),
            biased=np.flatnonzero(table["bias"]).tolist(),
            scored=scored.tolist(),
            min_tokens=table["min_tokens"].copy() if table["min_tokens"].any() else None,
            num_top=table["num_logprobs"][scored].tolist(),
        )
        return self._newest

    def _adjust(
        self, logits: torch.Tensor, batch: _Batch, num_sampled: NDArray[np.int64]
    ) -> torch.Tensor:
        """The logits after penalties, bias and bans: the same tensor if there are none."""
        request_ids = batch.request_ids
        added = [(row, self._biases[request_ids[row]]) for row in batch.biased]
        if batch.min_tokens is not None:
            banned = np.flatnonzero(num_sampled < batch.min_tokens).tolist()
            added += [(row, self._bans[request_ids[row]]) for row in banned]
        if not batch.penalized and not added:
            return logits
        logits = logits.clone()
        if batch.penalized:
            rows = torch.tensor(batch.penalized, device=self._device)
            self._penalties.apply(logits, rows, [request_ids[row] for row in batch.penalized])
        if added:
            lengths = [additions.ids.shape[0] for _, additions in added]
            rows = torch.tensor(np.repeat([row for row, _ in added], lengths), device=self._device)
            columns = torch.cat([additions.ids for _, additions in added])
            values = torch.cat([additions.values for _, additions in added])
            logits.index_put_((rows, columns), values, accumulate=True)
        return logits

    def _masked(
        self, adjusted: torch.Tensor, original: torch.Tensor, masks: Masks | None
    ) -> torch.Tensor:
        if masks is None:
            return adjusted
        rows, legal = masks
        adjusted = adjusted.clone() if adjusted is original else adjusted
        index = torch.tensor(rows, device=self._device)
        banned = ~torch.from_numpy(legal).to(self._device)
        if len(rows) == adjusted.shape[0]:
            return adjusted.masked_fill_(banned, -torch.inf)
        return adjusted.index_copy_(0, index, adjusted[index].masked_fill_(banned, -torch.inf))

    def _draw(
        self, logits: torch.Tensor, batch: _Batch, num_sampled: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The tokens of the drawn rows."""
        numbers = uniform(batch.seeds, num_sampled.astype(np.uint64))
        cuts = replace(batch.cuts, uniform=self._column(numbers))
        if batch.drawn.size < logits.shape[0]:
            logits = logits[torch.from_numpy(batch.drawn).to(self._device)]
        return draw(logits, cuts, self._draw_rows).cpu().numpy()

    def _column(self, values: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def _record(self, batch: _Batch, token_ids: list[int], errors: Container[int]) -> None:
        self._table["num_sampled"][batch.slots] += np.array(token_ids) != NO_TOKEN
        rows = [row for row in batch.penalized if row not in errors]
        if rows:
            self._penalties.record(
                [batch.request_ids[row] for row in rows], [token_ids[row] for row in rows]
            )

    def _logprobs(
        self,
        logits: torch.Tensor,
        batch: _Batch,
        token_ids: list[int],
        errors: Container[int],
    ) -> list[TokenLogprobs | None]:
        result: list[TokenLogprobs | None] = [None] * len(token_ids)
        wanted = zip(batch.scored, batch.num_top, strict=True)
        asked = [(row, num_top) for row, num_top in wanted if row not in errors]
        if asked:
            rows = [row for row, _ in asked]
            entries = token_logprobs(
                logits[torch.tensor(rows, device=self._device)],
                [token_ids[row] for row in rows],
                [num_top for _, num_top in asked],
            )
            for row, entry in zip(rows, entries, strict=True):
                result[row] = entry
        return result

    def _row(self, request_id: str, params: SamplingParams, seed: int) -> tuple[object, ...]:
        """The request's row of the table, in the order of its columns."""
        off = params.top_k <= 0
        return (
            max(params.temperature, np.finfo(np.float32).tiny),
            self._vocab_size if off else min(params.top_k, self._vocab_size),
            params.top_p,
            params.min_p,
            seed & MASK,
            0,
            params.min_tokens if request_id in self._bans else 0,
            -1 if params.logprobs is None else params.logprobs,
            params.temperature == 0.0 or params.top_k == 1,
            request_id in self._penalties,
            request_id in self._biases,
        )

    def _additions(self, values: dict[int, float]) -> _Additions:
        return _Additions(
            torch.tensor(list(values), dtype=torch.int64, device=self._device),
            torch.tensor(list(values.values()), dtype=torch.float32, device=self._device),
        )

    def _grow(self) -> None:
        num_slots = self._table.shape[0]
        num_new = max(num_slots, 16)
        self._table = np.concatenate([self._table, np.zeros(num_new, dtype=_TABLE)])
        self._free.extend(range(num_slots, num_slots + num_new))


_NO_CHOICE = "The model's logits are not finite, so no token can be sampled."
