"""The embedder all-MiniLM-L6-v2 on ONNX Runtime, with 384 dimensions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from cstp_grpc.embedding.embedder import Vectors
from cstp_grpc.embedding.model_files import MODEL, ModelFiles, WeightsMissing
from cstp_grpc.embedding.onnx_conversion import prepare_onnx_model
from cstp_grpc.embedding.onnx_encoder import OnnxTextEncoder, open_onnx_session, pool_mean
from cstp_grpc.embedding.text_batches import BATCH_TOKENS, ONE_THREAD, EmbeddingThreads
from cstp_grpc.errors import QueryFailed

logger = logging.getLogger(__name__)

DIMENSIONS = 384
MAX_TOKENS = 256
"""Tokens of a text that the model reads: max_seq_length of its published configuration."""
MAX_CHARACTERS = 8192
"""Characters of a text that are tokenised: enough for 256 tokens of any language, and a bound for the time it takes."""

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

    def __init__(
        self,
        weights: ModelFiles,
        cache_dir: Path,
        threads: EmbeddingThreads = ONE_THREAD,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        """Load the model and verify that it is the published one. Raises WeightsMissing."""
        model = prepare_onnx_model(weights, cache_dir)
        tokenizer, session = load_tokenizer(weights.tokenizer), open_session(model, threads.per_batch)
        self._encoder = OnnxTextEncoder(tokenizer, session, pool_mean, MAX_CHARACTERS, threads.batches, batch_tokens)
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
            return self._encoder.encode(texts, DIMENSIONS)
        except Exception as error:
            logger.exception("embedding %d texts failed", len(texts))
            raise QueryFailed("The text could not be turned into a vector.") from error

    def _verify_probes(self, model: Path, tokenizer: Path) -> None:
        """Compare the similarities of the probe texts with the published ones. Raises WeightsMissing."""
        try:
            first, second, third = self._encoder.encode(PROBES, DIMENSIONS)
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
    # Batches are padded by the encoder, to their longest text instead of a length that the file prescribes.
    tokenizer.no_padding()
    return tokenizer


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Return a session that runs one batch on `threads` CPU threads. Raises WeightsMissing."""
    try:
        return open_onnx_session(path, threads)
    except Exception as error:
        logger.exception("%s cannot be loaded", path)
        raise WeightsMissing(f"{path}: is not an ONNX model that can be loaded; the log says why.") from error
