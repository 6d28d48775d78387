"""Embedders on ONNX Runtime: all-MiniLM-L6-v2, and a folder of a sentence-transformer that was exported to ONNX.

Such a folder is as models are published: `tokenizer.json`, `model.onnx` or `onnx/model.onnx`, `1_Pooling/config.json`,
and optionally `modules.json` and `sentence_bert_config.json`
(https://sbert.net/docs/sentence_transformer/usage/custom_models.html).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from cstp_grpc.contract.errors import ConfigError, QueryFailed
from cstp_grpc.platform.embedding import embedder
from cstp_grpc.platform.embedding.model_files import DIMENSIONS, MODEL, ModelFiles, WeightsMissing, prepare_onnx_model

logger = logging.getLogger(__name__)

Mask = NDArray[np.int64]
Pooling = Callable[[NDArray[np.float32], Mask], embedder.Vectors]
"""Makes vectors (batch, dimensions) of hidden states (batch, length, dimensions) and the mask of tokens; their length
does not matter."""


class OnnxTextEncoder:
    """Encodes texts with one model. Safe for many threads.

    `max_characters` of a text are tokenised, which bounds the time it takes; the tokenizer must truncate to the
    length of the model, and must not pad.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        session: onnxruntime.InferenceSession,
        pooling: Pooling,
        max_characters: int,
        threads: int,
        batch_tokens: int = embedder.BATCH_TOKENS,
    ) -> None:
        self._tokenizer = tokenizer
        self._session = session
        self._pooling = pooling
        self._max_characters = max_characters
        self._inputs = {each.name for each in session.get_inputs()}
        self._threads = embedder.BatchThreads(threads)
        self._batch_tokens = batch_tokens

    def encode(self, texts: Sequence[str], dimensions: int) -> embedder.Vectors:
        """Return a unit vector for each text. Raises whatever the libraries raise, also for other dimensions."""
        encodings = [self._tokenizer.encode(text[: self._max_characters]) for text in texts]
        vectors = np.empty((len(texts), dimensions), np.float32)

        def work(batch: list[int]) -> None:
            # Each batch has rows of its own, so that threads need no lock.
            vectors[batch] = self._run([encodings[index] for index in batch])

        self._threads.run(work, list(embedder.batch_by_length([len(each) for each in encodings], self._batch_tokens)))
        return vectors

    def measure_dimensions(self) -> int:
        return int(self._run([self._tokenizer.encode("length")]).shape[1])

    def _run(self, encodings: Sequence[Encoding]) -> embedder.Vectors:
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


def pool_mean(hidden: NDArray[np.float32], mask: Mask) -> embedder.Vectors:
    """Return the sum over each text's tokens, which points where their mean does."""
    weights = mask[:, np.newaxis, :].astype(np.float32)
    # As a matrix product it needs no intermediate array of the size of `hidden`.
    summed: embedder.Vectors = np.matmul(weights, hidden)[:, 0, :]
    return summed


def pool_first_token(hidden: NDArray[np.float32], mask: Mask) -> embedder.Vectors:  # noqa: ARG001
    return hidden[:, 0, :].copy()


def pool_last_token(hidden: NDArray[np.float32], mask: Mask) -> embedder.Vectors:
    last: embedder.Vectors = hidden[np.arange(len(hidden)), mask.sum(axis=1) - 1]
    return last


def pool_maximum(hidden: NDArray[np.float32], mask: Mask) -> embedder.Vectors:
    """Return the largest value of each dimension over each text's tokens."""
    largest: embedder.Vectors = np.where(mask[:, :, np.newaxis] > 0, hidden, -np.inf).max(axis=1).astype(np.float32)
    return largest


def open_onnx_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Return a session that runs one batch on `threads` CPU threads. Raises whatever ONNX Runtime raises."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Transformers are chains of nodes, so that nothing can run in parallel.
    options.inter_op_num_threads = 1
    # 3: errors only. The session is shared by all threads; its `run` is thread-safe.
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


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
PROBE_TOLERANCE = 0.015
"""Chosen: more than int8 weights change (0.009), less than another model would differ."""


class MiniLmEmbedder(embedder.UncachedEmbedder):
    """Embeds texts with all-MiniLM-L6-v2, which reads the first 256 tokens of a text."""

    model, dimensions = MODEL, DIMENSIONS

    def __init__(
        self,
        weights: ModelFiles,
        cache_dir: Path,
        threads: embedder.EmbeddingThreads = embedder.ONE_THREAD,
        batch_tokens: int = embedder.BATCH_TOKENS,
    ) -> None:
        """Load the model and verify that it is the published one. Raises WeightsMissing."""
        model = prepare_onnx_model(weights, cache_dir)
        tokenizer, session = load_tokenizer(weights.tokenizer), open_session(model, threads.per_batch)
        self._encoder = OnnxTextEncoder(tokenizer, session, pool_mean, MAX_CHARACTERS, threads.batches, batch_tokens)
        self._verify_probes(model, weights.tokenizer)

    def embed(self, texts: Sequence[str]) -> embedder.Vectors:
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


SETTING = "embedding.model_path"
TOKENIZER = "tokenizer.json"
MODELS = ("model.onnx", "onnx/model.onnx")
MODULES = "modules.json"
TEXT_CONFIG = "sentence_bert_config.json"
POOLING_CONFIG = "1_Pooling/config.json"
POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_mean_tokens": pool_mean,
    "pooling_mode_cls_token": pool_first_token,
    "pooling_mode_lasttoken": pool_last_token,
    "pooling_mode_max_tokens": pool_maximum,
    # The sum divided by the square root of the length points where the mean does.
    "pooling_mode_mean_sqrt_len_tokens": pool_mean,
}
"""The pooling for each flag of a pooling configuration."""
POOLING_FLAGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
"""The flag for each value of `embedding.pooling`."""
SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")
"""Modules that a model may consist of. Vectors are normalised in any case."""
DEFAULT_MAX_TOKENS = 512
"""Tokens of a text that are read if the folder does not say; most encoders have as many positions."""
CHARACTERS_PER_TOKEN = 32
"""Characters of a text that are tokenised for each token that the model reads: as many as of all-MiniLM-L6-v2."""


class OnnxFolderEmbedder(embedder.UncachedEmbedder):
    """Embeds texts with the model in a folder.

    `dimensions` is the required length, or None for any; `pooling` a key of `POOLING_FLAGS`, or None for that of the
    folder.
    """

    def __init__(
        self,
        folder: Path,
        threads: embedder.EmbeddingThreads,
        dimensions: int | None = None,
        pooling: str | None = None,
    ) -> None:
        """Load the model. Raises ConfigError, whose message names the file that does not fit."""
        files = ModelFolder(folder, pooling)
        text_config = files.read_json(TEXT_CONFIG, required=False)
        max_tokens = text_config.get("max_seq_length") or DEFAULT_MAX_TOKENS
        tokenizer = files.load_tokenizer(max_tokens)
        session = files.open_session(threads.per_batch)
        self._lower_case = bool(text_config.get("do_lower_case"))
        max_characters = max_tokens * CHARACTERS_PER_TOKEN
        flag = files.pooling_flag()
        self._encoder = OnnxTextEncoder(tokenizer, session, POOLINGS[flag], max_characters, threads.batches)
        self.dimensions = self._measure_dimensions(files, dimensions)
        # The hash of its files: a model that is exchanged in its folder is another one.
        self.model = f"onnx:{files.name}:{files.digest()}"
        if [flag] != files.stated_flags():
            self.model += f":{pooling}"

    def embed(self, texts: Sequence[str]) -> embedder.Vectors:
        """Return a unit vector for each text. Raises QueryFailed."""
        try:
            return self._encoder.encode(
                [text.lower() for text in texts] if self._lower_case else texts, self.dimensions
            )
        except Exception as error:
            logger.exception("embedding %d texts failed", len(texts))
            raise QueryFailed("The text could not be turned into a vector.") from error

    def _measure_dimensions(self, files: ModelFolder, expected: int | None) -> int:
        try:
            found = self._encoder.measure_dimensions()
        except Exception as error:
            logger.exception("%s cannot be run", files.model)
            raise ConfigError(f"{SETTING}: {files.model} cannot be run on tokens; the log says why") from error
        stated = files.read_json(POOLING_CONFIG, required=False).get("word_embedding_dimension", found)
        if found != stated:
            raise ConfigError(f"{SETTING}: {files.model} has {found} dimensions, but {POOLING_CONFIG} says {stated}")
        if expected is not None and found != expected:
            raise ConfigError(f"embedding.dimensions: {expected}, but the model in {files.folder} has {found}")
        return found


class ModelFolder:
    """Reads the files of a model, whose pooling may be overridden. Methods raise ConfigError."""

    def __init__(self, folder: Path, pooling: str | None) -> None:
        """Find the model and check that nothing but its pooling follows it."""
        self.folder = folder.expanduser().resolve()
        self.name = self.folder.name
        self._pooling = pooling
        required = (TOKENIZER, POOLING_CONFIG) if pooling is None else (TOKENIZER,)
        models = [self.folder / name for name in MODELS]
        missing = [name for name in required if not (self.folder / name).is_file()]
        if missing or not any(model.is_file() for model in models):
            wanted = f"{', '.join(required)} and {' or '.join(MODELS)}"
            raise ConfigError(f"{SETTING}: {folder} must hold {wanted}")
        self.model = next(model for model in models if model.is_file())
        modules = self.read_json(MODULES, required=False, kind=list)
        kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules if isinstance(module, dict)]
        if unknown := [kind for kind in kinds if kind not in SUPPORTED_MODULES]:
            raise ConfigError(f"{SETTING}: {self.folder / MODULES} has the module {unknown[0]}, which is not supported")

    def read_json(self, name: str, *, required: bool = True, kind: type = dict) -> Any:
        """Return the object or list in a file; an empty one if the file may be missing and is."""
        path = self.folder / name
        if not required and not path.is_file():
            return kind()
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{SETTING}: {path} cannot be read as JSON") from error
        if not isinstance(content, kind):
            raise ConfigError(f"{SETTING}: {path} must hold {'a list' if kind is list else 'an object'}")
        return content

    def load_tokenizer(self, max_tokens: object) -> Tokenizer:
        """Return the tokenizer, which truncates and does not pad."""
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise ConfigError(f"{SETTING}: max_seq_length in {self.folder / TEXT_CONFIG} must be a positive number")
        path = self.folder / TOKENIZER
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            logger.exception("%s cannot be read", path)
            raise ConfigError(f"{SETTING}: {path} is not a tokenizer; the log says why") from error
        tokenizer.enable_truncation(max_tokens)
        tokenizer.no_padding()
        return tokenizer

    def open_session(self, threads: int) -> onnxruntime.InferenceSession:
        try:
            return open_onnx_session(self.model, threads)
        except Exception as error:
            logger.exception("%s cannot be loaded", self.model)
            raise ConfigError(f"{SETTING}: {self.model} is not an ONNX model; the log says why") from error

    def stated_flags(self) -> list[str]:
        """Return the flags that the pooling configuration turns on; none without one."""
        config = self.read_json(POOLING_CONFIG, required=False)
        return [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]

    def pooling_flag(self) -> str:
        if self._pooling is not None:
            return POOLING_FLAGS[self._pooling]
        modes = self.stated_flags()
        if len(modes) != 1 or modes[0] not in POOLINGS:
            listed = ", ".join(modes) or "none"
            raise ConfigError(
                f"{SETTING}: {self.folder / POOLING_CONFIG} must turn on one of {', '.join(POOLINGS)}; it has {listed}"
            )
        return modes[0]

    def digest(self) -> str:
        """Return a short hash of all files that the vectors depend on."""
        # Large models keep their weights in files next to the graph, whose names begin with its name.
        weights = sorted(self.model.parent.glob(f"{self.model.name}*"))
        configs = [self.folder / name for name in (TOKENIZER, POOLING_CONFIG, TEXT_CONFIG)]
        digest = hashlib.sha256()
        for path in [*weights, *(config for config in configs if config.is_file())]:
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise ConfigError(f"{SETTING}: {path} cannot be read: {error.strerror}") from error
        return digest.hexdigest()[:16]
