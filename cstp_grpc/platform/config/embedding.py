"""The settings of the embedder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from cstp_grpc.platform.config.environment import is_loopback
from cstp_grpc.platform.config.settings_section import URL, SettingsSection

MAX_PREFIX = 300
"""Characters of a prompt. Chosen: the longest published ones have 150, and a model must have tokens left for texts."""
PREFIX = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""Without control characters."""
PROVIDERS_WITH = {"query_prefix": ("onnx", "openai"), "passage_prefix": ("onnx", "openai"), "pooling": ("onnx",)}
"""The providers that use a setting; the others have no prompts, or pool by themselves."""


class EmbeddingSettings(SettingsSection):
    """The embedder, which turns texts into vectors."""

    provider: Literal["minilm", "lexical", "onnx", "openai"] = "minilm"
    """`minilm` is all-MiniLM-L6-v2; `lexical` compares words only and needs no weights; `onnx` is the
    sentence-transformer in the folder `model_path`; `openai` asks an endpoint with the embeddings API of OpenAI.
    `cstp reindex` changes the embedder of a journal while servers run."""
    model_path: Path | None = None
    """For `minilm`, a folder with model.safetensors and tokenizer.json, or model.onnx and tokenizer.json, which is
    tried first. For `onnx`, a folder with tokenizer.json, model.onnx (or onnx/model.onnx) and 1_Pooling/config.json,
    which may be missing if `pooling` is given."""
    download: bool = True
    """Whether to download the weights of `minilm` if they are not found locally."""
    threads: int = Field(default=1, ge=1, le=64)
    """The number of threads for one batch of texts, such as a query. Used by `minilm` and `onnx`."""
    batch_threads: int = Field(default=2, ge=1, le=64)
    """The number of batches embedded at once, for instance by imports. More than the number of cores is not faster.
    Used by `minilm` and `onnx`."""
    cache_size: int = Field(default=4096, ge=0)
    """The number of query texts whose vectors are cached in memory."""
    url: str | None = Field(default=None, pattern=URL)
    """The base URL for `openai`, without `/embeddings`: `https://api.openai.com/v1`, `http://localhost:11434/v1`."""
    model: str | None = Field(default=None, min_length=1, max_length=200)
    """The model to request from `openai`. Vectors of different models are never compared."""
    api_key: SecretStr | None = Field(default=None, min_length=1)
    """The API key for `openai`. Set it in the environment as `CSTP_EMBEDDING__API_KEY`. It is sent only to `https`
    addresses and to this machine."""
    query_prefix: str | None = Field(default=None, max_length=MAX_PREFIX, pattern=PREFIX)
    """The prompt that the model expects before queries, such as `"query: "` with its space. Used by `onnx` and
    `openai`."""
    passage_prefix: str | None = Field(default=None, max_length=MAX_PREFIX, pattern=PREFIX)
    """The prompt that the model expects before stored texts, which are decisions and intents. Used by `onnx` and
    `openai`."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """How `onnx` makes a vector of those of the tokens: their mean, or that of the first (`cls`) or the last token.
    [default: as 1_Pooling/config.json says]"""
    dimensions: int | None = Field(default=None, ge=1, le=65_536)
    """The length of the vectors, required for `openai`. Vectors of another length are errors."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=600)
    """The timeout of `openai` for a batch of texts, retries included."""
    batch: int = Field(default=64, ge=1, le=2048)
    """The maximum number of texts in a request to `openai`."""
    retries: int = Field(default=2, ge=0, le=10)
    """How often a request to `openai` is retried after a transient failure."""

    @model_validator(mode="after")
    def check_provider(self) -> EmbeddingSettings:
        needed = {"onnx": ("model_path",), "openai": ("url", "model", "dimensions")}.get(self.provider, ())
        if missing := [name for name in needed if getattr(self, name) is None]:
            raise ValueError(f"{' and '.join(missing)} must be given where the provider is {self.provider}")
        for name, providers in PROVIDERS_WITH.items():
            if getattr(self, name) and self.provider not in providers:
                raise ValueError(f"{name} applies to {' and '.join(providers)} only: the provider is {self.provider}")
        parts = urlsplit(self.url or "")
        if "@" in parts.netloc:
            raise ValueError("url must have no user or password: the key belongs in api_key (CSTP_EMBEDDING__API_KEY)")
        if self.api_key is not None and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError("api_key would be sent unencrypted: url must begin with https, or name this machine")
        return self
