"""The base of language models: logits or a loss from token numbers, and sampling of text."""

from typing import Any

import numpy as np

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.linear import Linear
from spillgrad.nn.module import Module
from spillgrad.ops import creation
from spillgrad.ops.linear_cross_entropy import linear_cross_entropy
from spillgrad.tensor import Tensor


class LanguageModel(Module):
    """Predicts each next token. Subclasses define `hidden_states`, and set `lm_head` and a `config` with `context`."""

    config: Any
    lm_head: Linear

    def hidden_states(self, idx: Tensor) -> Tensor:
        """Return the input of `lm_head`.

        Parameters
        ----------
        idx : Tensor
            Token numbers, int64 of shape (B, T).

        Returns
        -------
        Tensor
            Hidden states of shape (B, T, width).
        """
        raise NotImplementedError(f"{type(self).__name__}: defines no hidden_states")

    def forward(
        self, idx: Tensor | np.ndarray, targets: Tensor | np.ndarray | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the logits of each next token, or the loss.

        With `targets`, the logits, the model's largest tensor, are never stored as a whole.

        Parameters
        ----------
        idx : Tensor or array
            Token numbers, int64 of shape (B, T).
        targets : Tensor or array, optional
            The next tokens, int64 of shape (B, T).

        Returns
        -------
        Tensor or None
            Logits of shape (B, T, vocab_size); None with `targets`.
        Tensor or None
            Mean cross-entropy, a tensor of no dimensions; None without `targets`.

        Raises
        ------
        ShapeError
            If `idx` has another number of dimensions, or more positions than the config's `context`.
        """
        hidden = self.hidden_states(self._tokens(idx))
        if targets is None:
            return self.lm_head(hidden), None
        return None, linear_cross_entropy(hidden, self.lm_head.weight, self._placed(targets))

    def generate(
        self, idx: Tensor | np.ndarray, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None,
        seed: int = 0,
    ) -> Tensor:  # fmt: skip
        """Continue token sequences by sampling.

        Parameters
        ----------
        idx : Tensor or array
            Token numbers, int64 of shape (B, T). Each prediction uses the last `context` tokens only.
        max_new_tokens : int
            Number of tokens to add.
        temperature : float, default 1.0
            Divides the logits; 0 always takes the likeliest token.
        top_k : int, optional
            Number of likeliest tokens that are sampled; by default, all are.
        seed : int, default 0
            Seed of the draws.

        Returns
        -------
        Tensor
            Token numbers, int64 of shape (B, T + max_new_tokens).

        Raises
        ------
        ArgumentError
            If `temperature` is negative, or `top_k` less than 1.
        """
        if temperature < 0 or (top_k is not None and top_k < 1):
            raise ArgumentError(
                f"generate: got temperature {temperature} and top_k {top_k}; wanted at least 0, and None or at least 1"
            )
        tokens = np.array(creation.as_tensor(idx).numpy(force=True), np.int64)
        uniform = np.random.Generator(np.random.Philox(seed))
        was_training = self.training
        self.eval()
        try:
            with no_grad():
                for _ in range(max_new_tokens):
                    hidden = self.hidden_states(self._tokens(tokens[:, -self.config.context :]))
                    logits = self.lm_head(hidden[:, -1]).numpy(force=True).astype(np.float64)
                    following = _sample(logits, temperature, top_k, uniform.random(len(logits)))
                    tokens = np.concatenate([tokens, following[:, None]], axis=1)
        finally:
            self.train(was_training)
        return self._placed(tokens)

    def _placed(self, data: Tensor | np.ndarray) -> Tensor:
        """Return a tensor unchanged, or a NumPy array as a tensor on the model's device."""
        return data if isinstance(data, Tensor) else creation.as_tensor(data, device=self.lm_head.weight.device)

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


def _sample(logits: np.ndarray, temperature: float, top_k: int | None, uniform: np.ndarray) -> Any:
    """Draw a token for each row of logits: invert the cumulative distribution at the row's entry of `uniform`."""
    if temperature == 0:
        return logits.argmax(-1)
    if top_k is not None and top_k < logits.shape[-1]:
        least = np.partition(logits, -top_k, axis=-1)[:, [-top_k]]
        logits = np.where(logits < least, -np.inf, logits)
    weights = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    cumulative = weights.cumsum(-1)
    return (cumulative <= uniform[:, None] * cumulative[:, [-1]]).sum(-1)
