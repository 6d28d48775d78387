"""The embedder all-MiniLM-L6-v2 on ONNX Runtime, with 384 dimensions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from cstp_grpc.embedding.embedder import Vectors
from cstp_grpc.embedding.model_files import MODEL, ModelFiles, WeightsMissing
from cstp_grpc.embedding.onnx_conversion import prepare_onnx_model
from cstp_grpc.errors import QueryFailed

logger = logging.getLogger(__name__)

DIMENSIONS = 384
MAX_TOKENS = 256
"""Tokens of a text that the model reads: max_seq_length of its published configuration."""
MAX_CHARACTERS = 8192
"""Characters of a text that are tokenised: enough for 256 tokens of any language, and a bound for the time it takes."""
BATCH_TEXTS = 32
BATCH_TOKENS = 2048
"""Tokens of a batch, padding included. Measured: larger batches are no faster and take hundreds of megabytes."""

PROBES = (
    "Orders are kept in a PostgreSQL database.",
    "We store what customers bought in relational tables.",
    "The old CAFÉ by the harbour serves fresh fish.",
)
PROBE_COSINES = (0.5231, 0.0987, 0.0717)
"""The published model's similarities of the first and second, first and third, second and third probe."""
PROBE_TOLERANCE = 1e-3
"""Chosen: more than the rounding differences between exports of this model, less than another model would differ."""


class MiniLmEmbedder:
    """Embeds texts with all-MiniLM-L6-v2, which reads the first 256 tokens of a text."""

    def __init__(self, weights: ModelFiles, cache_dir: Path, threads: int) -> None:
        """Load the model and verify that it is the published one. Raises WeightsMissing."""
        model = prepare_onnx_model(weights, cache_dir)
        self._tokenizer = load_tokenizer(weights.tokenizer)
        self._session = open_session(model, threads)
        self._verify_probes(model, weights.tokenizer)

    @property
    def model(self) -> str:
        """The model's published name."""
        return MODEL

    @property
    def dimensions(self) -> int:
        """The length of the vectors: 384."""
        return DIMENSIONS

    def is_cached(self, text: str) -> bool:  # noqa: ARG002
        """Return False: no vector is cached."""
        return False

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a unit vector for each text. Raises QueryFailed."""
        try:
            return self._embed(texts)
        except Exception as error:
            logger.exception("embedding %d texts failed", len(texts))
            raise QueryFailed("The text could not be turned into a vector.") from error

    def _embed(self, texts: Sequence[str]) -> Vectors:
        encodings = [self._tokenizer.encode(text[:MAX_CHARACTERS]) for text in texts]
        vectors = np.empty((len(texts), DIMENSIONS), np.float32)
        for batch in batch_by_length([len(encoding) for encoding in encodings]):
            vectors[batch] = self._run([encodings[index] for index in batch])
        return vectors

    def _run(self, encodings: Sequence[Encoding]) -> Vectors:
        """Return the vectors of one batch, padded to its longest text."""
        shape = (len(encodings), max(len(encoding) for encoding in encodings))
        tokens, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, encoding in enumerate(encodings):
            tokens[row, : len(encoding)] = encoding.ids
            mask[row, : len(encoding)] = 1
        inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}
        # Exports name their first output differently; it is the last hidden state.
        return mean_pool(self._session.run(None, inputs)[0], mask)

    def _verify_probes(self, model: Path, tokenizer: Path) -> None:
        """Compare the similarities of the probe texts with the published ones. Raises WeightsMissing."""
        try:
            first, second, third = self._embed(PROBES)
        except Exception as error:
            logger.exception("%s cannot be run", model)
            raise WeightsMissing(f"{model}: cannot be run as {MODEL}; the log says why.") from error
        cosines = (first @ second, first @ third, second @ third)
        if not np.allclose(cosines, PROBE_COSINES, rtol=0, atol=PROBE_TOLERANCE):
            raise WeightsMissing(
                f"{model} with {tokenizer}: is not {MODEL}: known sentences get similarities of "
                f"{np.round(cosines, 3).tolist()} instead of {list(PROBE_COSINES)}."
            )


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer that truncates at 256 tokens and does not pad. Raises WeightsMissing."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        logger.exception("%s cannot be read", path)
        raise WeightsMissing(f"{path}: is not a tokenizer; the log says why.") from error
    tokenizer.enable_truncation(MAX_TOKENS)
    # Batches are padded in `_run`, to their longest text instead of a length that the file prescribes.
    tokenizer.no_padding()
    return tokenizer


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Return a session that runs one text on `threads` CPU threads. Raises WeightsMissing."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # The graph is a chain of nodes, so that there is nothing to run beside each other.
    options.inter_op_num_threads = 1
    # 3: errors only. The session is shared by all threads; its `run` is thread-safe.
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        logger.exception("%s cannot be loaded", path)
        raise WeightsMissing(f"{path}: is not an ONNX model that can be loaded; the log says why.") from error


def batch_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions of texts in batches of similar length, within the batch limits."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # In order of length, so that this text is the longest so far, to which the others are padded.
        if batch and (len(batch) == BATCH_TEXTS or (len(batch) + 1) * lengths[index] > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def mean_pool(hidden: NDArray[np.float32], mask: NDArray[np.int64]) -> Vectors:
    """Return the normalised mean over each text's tokens; `hidden` is (batch, length, dimensions)."""
    weights = mask[:, np.newaxis, :].astype(np.float32)
    # A sum instead of a mean: they differ by a factor, which the normalisation removes. As a matrix product it needs no
    # intermediate array of the size of `hidden`.
    summed: Vectors = np.matmul(weights, hidden)[:, 0, :]
    summed /= np.linalg.norm(summed, axis=1, keepdims=True)
    return summed
