"""An embedder for a folder of a sentence-transformer that was exported to ONNX.

The folder is as such models are published: `tokenizer.json`, `model.onnx` or `onnx/model.onnx`,
`1_Pooling/config.json`, and optionally `modules.json` and `sentence_bert_config.json`
(https://sbert.net/docs/sentence_transformer/usage/custom_models.html).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from tokenizers import Tokenizer

from cstp_grpc.embedding.embedder import Vectors
from cstp_grpc.embedding.onnx_encoder import (
    OnnxTextEncoder,
    Pooling,
    open_onnx_session,
    pool_first_token,
    pool_last_token,
    pool_maximum,
    pool_mean,
)
from cstp_grpc.embedding.text_batches import EmbeddingThreads
from cstp_grpc.errors import ConfigError, QueryFailed

logger = logging.getLogger(__name__)

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
"""What the flags of a pooling configuration mean."""
SUPPORTED_MODULES = ("Transformer", "Pooling", "Normalize")
"""Modules that a model may consist of. Vectors are normalised in any case."""
DEFAULT_MAX_TOKENS = 512
"""Tokens of a text that are read if the folder does not say; most encoders have as many positions."""
CHARACTERS_PER_TOKEN = 32
"""Characters of a text that are tokenised for each token that the model reads: as many as of all-MiniLM-L6-v2."""


class OnnxFolderEmbedder:
    """Embeds texts with the model in a folder. `dimensions` is what they must be, or None for any."""

    def __init__(self, folder: Path, threads: EmbeddingThreads, dimensions: int | None = None) -> None:
        """Load the model. Raises ConfigError, whose message names the file that does not fit."""
        files = ModelFolder(folder)
        text_config = files.read_json(TEXT_CONFIG, required=False)
        max_tokens = text_config.get("max_seq_length") or DEFAULT_MAX_TOKENS
        tokenizer = files.load_tokenizer(max_tokens)
        session = files.open_session(threads.per_batch)
        self._lower_case = bool(text_config.get("do_lower_case"))
        max_characters = max_tokens * CHARACTERS_PER_TOKEN
        self._encoder = OnnxTextEncoder(tokenizer, session, files.pooling(), max_characters, threads.batches)
        self._dimensions = self._measure_dimensions(files, dimensions)
        self._model = f"onnx:{files.name}:{files.digest()}"

    @property
    def model(self) -> str:
        """The folder's name and a hash of its files: a model that is exchanged in its folder is another one."""
        return self._model

    @property
    def dimensions(self) -> int:
        """The length of the vectors."""
        return self._dimensions

    def is_cached(self, text: str) -> bool:  # noqa: ARG002
        """Return False: no vector is cached."""
        return False

    def embed(self, texts: Sequence[str]) -> Vectors:
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
        stated = files.read_json(POOLING_CONFIG).get("word_embedding_dimension", found)
        if found != stated:
            raise ConfigError(f"{SETTING}: {files.model} has {found} dimensions, but {POOLING_CONFIG} says {stated}")
        if expected is not None and found != expected:
            raise ConfigError(f"embedding.dimensions: {expected}, but the model in {files.folder} has {found}")
        return found


class ModelFolder:
    """Reads the files of a model. Methods raise ConfigError."""

    def __init__(self, folder: Path) -> None:
        """Find the model and check that nothing but its pooling follows it."""
        self.folder = folder.expanduser().resolve()
        self.name = self.folder.name
        models = [self.folder / name for name in MODELS]
        missing = [name for name in (TOKENIZER, POOLING_CONFIG) if not (self.folder / name).is_file()]
        if missing or not any(model.is_file() for model in models):
            wanted = f"{TOKENIZER}, {POOLING_CONFIG} and {' or '.join(MODELS)}"
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
        """Return a session of the model."""
        try:
            return open_onnx_session(self.model, threads)
        except Exception as error:
            logger.exception("%s cannot be loaded", self.model)
            raise ConfigError(f"{SETTING}: {self.model} is not an ONNX model; the log says why") from error

    def pooling(self) -> Pooling:
        """Return the one pooling that the configuration turns on."""
        config = self.read_json(POOLING_CONFIG)
        modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
        if len(modes) != 1 or modes[0] not in POOLINGS:
            listed = ", ".join(modes) or "none"
            raise ConfigError(
                f"{SETTING}: {self.folder / POOLING_CONFIG} must turn on one of {', '.join(POOLINGS)}; it has {listed}"
            )
        return POOLINGS[modes[0]]

    def digest(self) -> str:
        """Return a short hash of all files that the vectors depend on."""
        # Large models keep their weights in files beside the graph, whose names begin with its name.
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
