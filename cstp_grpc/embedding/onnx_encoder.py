"""Runs a transformer on ONNX Runtime: from texts through tokens and hidden states to unit vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from cstp_grpc.embedding.embedder import Vectors
from cstp_grpc.embedding.text_batches import BATCH_TOKENS, BatchThreads, batch_by_length

Mask = NDArray[np.int64]
Pooling = Callable[[NDArray[np.float32], Mask], Vectors]
"""Makes vectors (batch, dimensions) of hidden states (batch, length, dimensions) and the mask of tokens; their length
does not matter."""


class OnnxTextEncoder:
    """Encodes texts with one model. Safe for many threads.

    `max_characters` of a text are tokenised, which bounds the time it takes; the tokenizer must truncate to what the
    model reads, and must not pad.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        session: onnxruntime.InferenceSession,
        pooling: Pooling,
        max_characters: int,
        threads: int,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self._tokenizer = tokenizer
        self._session = session
        self._pooling = pooling
        self._max_characters = max_characters
        self._inputs = {each.name for each in session.get_inputs()}
        self._threads = BatchThreads(threads)
        self._batch_tokens = batch_tokens

    def encode(self, texts: Sequence[str], dimensions: int) -> Vectors:
        """Return a unit vector for each text. Raises whatever the libraries raise, also for other dimensions."""
        encodings = [self._tokenizer.encode(text[: self._max_characters]) for text in texts]
        vectors = np.empty((len(texts), dimensions), np.float32)

        def work(batch: list[int]) -> None:
            # Each batch has rows of its own, so that threads need no lock.
            vectors[batch] = self._run([encodings[index] for index in batch])

        self._threads.run(work, list(batch_by_length([len(each) for each in encodings], self._batch_tokens)))
        return vectors

    def measure_dimensions(self) -> int:
        """Return the length of the model's vectors. Raises whatever the libraries raise."""
        return int(self._run([self._tokenizer.encode("length")]).shape[1])

    def _run(self, encodings: Sequence[Encoding]) -> Vectors:
        """Return the vectors of one batch, padded to its longest text."""
        shape = (len(encodings), max(len(encoding) for encoding in encodings))
        tokens, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, encoding in enumerate(encodings):
            tokens[row, : len(encoding)] = encoding.ids
            mask[row, : len(encoding)] = 1
        known = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}
        # Models without segments have no such input.
        inputs: Mapping[str, Mask] = {name: value for name, value in known.items() if name in self._inputs}
        # Exports name their first output differently; it is the last hidden state.
        vectors = self._pooling(self._session.run(None, inputs)[0], mask)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(vectors).all():
            raise ValueError("the model computed a vector without a direction")
        return vectors


def pool_mean(hidden: NDArray[np.float32], mask: Mask) -> Vectors:
    """Return the sum over each text's tokens, which points where their mean does."""
    weights = mask[:, np.newaxis, :].astype(np.float32)
    # As a matrix product it needs no intermediate array of the size of `hidden`.
    summed: Vectors = np.matmul(weights, hidden)[:, 0, :]
    return summed


def pool_first_token(hidden: NDArray[np.float32], mask: Mask) -> Vectors:  # noqa: ARG001
    """Return the hidden state of each text's first token, `[CLS]`."""
    return hidden[:, 0, :].copy()


def pool_last_token(hidden: NDArray[np.float32], mask: Mask) -> Vectors:
    """Return the hidden state of each text's last token."""
    last: Vectors = hidden[np.arange(len(hidden)), mask.sum(axis=1) - 1]
    return last


def pool_maximum(hidden: NDArray[np.float32], mask: Mask) -> Vectors:
    """Return the largest value of each dimension over each text's tokens."""
    largest: Vectors = np.where(mask[:, :, np.newaxis] > 0, hidden, -np.inf).max(axis=1).astype(np.float32)
    return largest


def open_onnx_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Return a session that runs one batch on `threads` CPU threads. Raises whatever ONNX Runtime raises."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Transformers are chains of nodes, so that there is nothing to run beside each other.
    options.inter_op_num_threads = 1
    # 3: errors only. The session is shared by all threads; its `run` is thread-safe.
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
