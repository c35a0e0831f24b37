"""The base of language models: logits or a loss from token numbers, and generation of text."""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.autograd.recompute.region import checkpoint
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.models.attended import KeyValueCache, require_starts
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.ops import creation
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.linear_cross_entropy import linear_cross_entropy
from spillgrad.ops.losses import IGNORE_INDEX, cross_entropy
from spillgrad.ops.trigonometry import tanh
from spillgrad.tensor import Tensor

# The most bytes of logits at a time, where a loss needs them as a whole.
_LOGIT_BYTES = 64 << 20


class LanguageModel(Module):
    """Predicts each next token. Subclasses define `hidden_states`, and set `lm_head` and a `config` with `context`."""

    config: Any
    lm_head: Module

    @property
    def layers(self) -> int:
        """The number of layers that keep keys and values."""
        raise NotImplementedError(f"{type(self).__name__}: does not say how many layers it has")

    @property
    def logit_softcap(self) -> float | None:
        """The bound c of logits, which become c · tanh(logit / c); None if they have none."""
        return None

    def keeps_keys(self, former: int, length: int) -> bool:
        """Return whether keys of a sequence of `former` positions are still right when it has `length` positions.

        Parameters
        ----------
        former : int
            Number of positions.
        length : int
            A larger number.

        Returns
        -------
        bool
            True, unless positions turn otherwise in longer sequences.
        """
        return True

    def hidden_states(
        self, idx: Tensor, starts: np.ndarray | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:  # fmt: skip
        """Return the input of `lm_head`.

        Parameters
        ----------
        idx : Tensor
            Token numbers, int64 of shape (B, T).
        starts : array, optional
            For each token, the place of the first token of its document, int64 of shape (B, T); by default, a row is
            one document. Tokens see those of their document alone, and count positions from its first one.
        cache : KeyValueCache, optional
            Keys and values of former positions, which `idx` continues; those of `idx` are added to it.

        Returns
        -------
        Tensor
            Hidden states of shape (B, T, width).
        """
        raise NotImplementedError(f"{type(self).__name__}: defines no hidden_states")

    def forward(
        self, idx: Tensor | np.ndarray, targets: Tensor | np.ndarray | None = None,
        starts: Tensor | np.ndarray | None = None, cache: KeyValueCache | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """Return the logits of each next token, or the loss.

        With `targets`, the logits, the model's largest tensor, are never stored as a whole.

        Parameters
        ----------
        idx : Tensor or array
            Token numbers, int64 of shape (B, T).
        targets : Tensor or array, optional
            The next tokens, int64 of shape (B, T); -100 for a position that has no loss.
        starts : Tensor or array, optional
            For each token, the place of the first token of its document, int64 of shape (B, T); by default, a row is
            one document. Tokens see those of their document alone, and count positions from its first one.
        cache : KeyValueCache, optional
            Keys and values of former positions, which `idx` continues; those of `idx` are added to it.

        Returns
        -------
        Tensor or None
            Logits of shape (B, T, vocab_size), or, with `cache`, of the last position alone, (B, 1, vocab_size); None
            with `targets`.
        Tensor or None
            Mean cross-entropy, a tensor of no dimensions; None without `targets`.

        Raises
        ------
        ShapeError
            If `idx` has another number of dimensions, or more positions than the config's `context`; if `starts` does
            not fit `idx`.
        """
        idx = self._tokens(idx)
        places = None
        if starts is not None:
            places = np.asarray(creation.as_tensor(starts).numpy(force=True))
            require_starts(type(self).__name__, places, tuple(idx.shape))
        hidden = self.hidden_states(idx, places, cache)
        if targets is None:
            return self._logits(hidden if cache is None else hidden[:, -1:]), None
        return None, self._loss(hidden, self._placed(targets))

    def stream(
        self, idx: Tensor | np.ndarray, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None,
        seed: int = 0, top_p: float = 1.0, stop: Collection[int] = (),
    ) -> Iterator[np.ndarray]:  # fmt: skip
        """Continue token sequences by sampling, and yield each next token as soon as it is drawn.

        Keys and values of former positions are kept, so that each token takes a pass of one position. A sequence that
        grows beyond `context` is computed anew for each token, from its last `context` tokens.

        Parameters
        ----------
        idx : Tensor or array
            Token numbers, int64 of shape (B, T).
        max_new_tokens : int
            Largest number of tokens to add.
        temperature : float, default 1.0
            Divides the logits; 0 always takes the likeliest token.
        top_k : int, optional
            Number of likeliest tokens that are sampled; by default, all are.
        seed : int, default 0
            Seed of the draws.
        top_p : float, default 1.0
            Only the likeliest tokens whose probabilities sum to this are sampled.
        stop : collection of int, default ()
            Tokens that end a sequence.

        Returns
        -------
        iterator of array
            The next token of each sequence, int64 of shape (B,). A sequence that has ended repeats its last token; when
            all have ended, the iterator ends.

        Raises
        ------
        ArgumentError
            If `temperature` is negative, `top_k` less than 1, or `top_p` not in (0, 1].

        Notes
        -----
        Source of `top_p`: Holtzman et al. 2019, "The curious case of neural text degeneration".
        """
        if temperature < 0 or (top_k is not None and top_k < 1) or not 0 < top_p <= 1:
            raise ArgumentError(
                f"generate: got temperature {temperature}, top_k {top_k} and top_p {top_p}; wanted at least 0, None or "
                "at least 1, and above 0 to 1"
            )
        tokens = np.array(creation.as_tensor(idx).numpy(force=True), np.int64)
        return self._drawn(tokens, max_new_tokens, temperature, top_k, seed, top_p, stop)

    def _drawn(
        self, tokens: np.ndarray, count: int, temperature: float, top_k: int | None, seed: int, top_p: float,
        stop: Collection[int],
    ) -> Iterator[np.ndarray]:  # fmt: skip
        uniform = np.random.Generator(np.random.Philox(seed))
        ended = np.zeros(len(tokens), np.bool_)
        cache = KeyValueCache(self.layers)
        modules = list(self.modules())
        for _ in range(count):
            if ended.all():
                return
            logits = self._next_logits(tokens, cache, modules)
            following = _sample(logits, temperature, top_k, top_p, uniform.random(len(logits)))
            following = np.where(ended, tokens[:, -1], following)
            ended |= np.isin(following, list(stop))
            tokens = np.concatenate([tokens, following[:, None]], axis=1)
            if tokens.shape[1] > self.config.context or not self.keeps_keys(cache.length, tokens.shape[1]):
                cache = KeyValueCache(self.layers)
            yield following

    def _next_logits(self, tokens: np.ndarray, cache: KeyValueCache, modules: list[Module]) -> np.ndarray:
        """Return the logits after the last token of each sequence; add to the cache what it lacks.

        The model, which consists of `modules`, computes in evaluation mode. Between two tokens it is as its user left
        it.
        """
        training = [module for module in modules if module.training]
        for module in training:
            module.training = False
        try:
            with no_grad():
                shown = tokens[:, -self.config.context :][:, cache.length :]
                logits, _ = self(shown, cache=cache)
                return np.asarray(logits[:, -1].numpy(force=True).astype(np.float64))
        finally:
            for module in training:
                module.training = True

    def generate(
        self, idx: Tensor | np.ndarray, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None,
        seed: int = 0, top_p: float = 1.0, stop: Collection[int] = (),
    ) -> Tensor:  # fmt: skip
        """Continue token sequences by sampling.

        Parameters
        ----------
        idx : Tensor or array
            Token numbers, int64 of shape (B, T). Each prediction uses the last `context` tokens only.
        max_new_tokens : int
            Largest number of tokens to add.
        temperature : float, default 1.0
            Divides the logits; 0 always takes the likeliest token.
        top_k : int, optional
            Number of likeliest tokens that are sampled; by default, all are.
        seed : int, default 0
            Seed of the draws.
        top_p : float, default 1.0
            Only the likeliest tokens whose probabilities sum to this are sampled.
        stop : collection of int, default ()
            Tokens that end a sequence, which then repeats its last token; when all have ended, this ends.

        Returns
        -------
        Tensor
            Token numbers, int64 of shape (B, T + max_new_tokens), or less if all sequences ended.

        Raises
        ------
        ArgumentError
            If `temperature` is negative, `top_k` less than 1, or `top_p` not in (0, 1].
        """
        given = np.array(creation.as_tensor(idx).numpy(force=True), np.int64)
        drawn = list(self.stream(given, max_new_tokens, temperature, top_k, seed, top_p, stop))
        return self._placed(np.concatenate([given, *(each[:, None] for each in drawn)], axis=1))

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        cap = self.logit_softcap
        return logits if cap is None else tanh(logits / cap) * cap

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        head: Any = self.lm_head
        if self.logit_softcap is None and type(head).forward is Linear.forward:
            return linear_cross_entropy(hidden, head.weight, targets, head.bias)
        if targets.shape != hidden.shape[:-1]:
            raise ShapeError(
                f"{type(self).__name__}: got targets of shape {tuple(targets.shape)} for tokens of shape "
                f"{tuple(hidden.shape[:-1])}; wanted the next token of each"
            )

        def total(rows: Tensor, of: Tensor) -> Tensor:
            logits = self._logits(rows)  # a sum in half precision would overflow
            return cross_entropy(to_dtype(logits, "float32") if logits.itemsize < 4 else logits, of, reduction="sum")

        # Backward computes the logits of each part again, so that one part's logits exist at a time.
        rows, of = hidden.flatten(0, -2), targets.flatten()
        size = max(1, _LOGIT_BYTES // (head.out_features * rows.dtype.itemsize))
        sums = [
            checkpoint(total, rows[start : start + size], of[start : start + size], use_reentrant=False)
            for start in range(0, rows.shape[0], size)
        ]
        count = int((of != IGNORE_INDEX).sum().item())
        result = sums[0]
        for each in sums[1:]:
            result = result + each
        return to_dtype(result / count, hidden.dtype)

    def _placed(self, data: Tensor | np.ndarray) -> Tensor:
        """Return a tensor unchanged, or a NumPy array as a tensor on the model's device."""
        head: Any = self.lm_head
        return data if isinstance(data, Tensor) else creation.as_tensor(data, device=head.weight.device)

    def _tokens(self, idx: Tensor | np.ndarray) -> Tensor:
        idx = self._placed(idx)
        if idx.ndim != 2 or not 1 <= idx.shape[1] <= self.config.context:
            raise ShapeError(
                f"{type(self).__name__}: got tokens of shape {tuple(idx.shape)}, wanted (batch, 1 to "
                f"{self.config.context}); use shorter sequences, or a model with a larger context"
            )
        return idx


def tied_head(embedding: Embedding) -> Linear:
    """Return an output layer that shares the weight of `embedding`; no other weight is allocated or drawn."""
    head = Linear(embedding.embedding_dim, 0, bias=False)
    head.out_features, head.weight = embedding.num_embeddings, embedding.weight
    return head


def _sample(logits: np.ndarray, temperature: float, top_k: int | None, top_p: float, uniform: np.ndarray) -> Any:
    """Draw a token for each row of logits: invert the cumulative distribution at the row's entry of `uniform`."""
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None and top_k < logits.shape[-1]:
        least = np.partition(logits, -top_k, axis=-1)[:, [-top_k]]
        logits = np.where(logits < least, -np.inf, logits)
    weights = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    if top_p < 1:
        ordered = -np.sort(-weights, axis=-1)
        before = ordered.cumsum(-1) - ordered  # what likelier tokens have together
        least = np.where(before < top_p * ordered.sum(-1, keepdims=True), ordered, np.inf).min(-1, keepdims=True)
        weights = np.where(weights < least, 0, weights)
    cumulative = weights.cumsum(-1)
    return (cumulative <= uniform[:, None] * cumulative[:, [-1]]).sum(-1)
