"""BERT and the embedding made of it, computed in the plainest way, to compare the real one with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.platform.embedding import onnx_graph

Array = NDArray[np.float64]
Tensors = Mapping[str, NDArray[np.float32]]

erf = np.vectorize(math.erf, otypes=[np.float64])


def hidden_state(tensors: Tensors, tokens: Sequence[int]) -> Array:
    """Return the last hidden state of one text without padding, of shape (length, hidden)."""
    bert = Bert(tensors)
    state = bert.embed(tokens)
    for layer in range(6):
        state = bert.layer(f"encoder.layer.{layer}.", state)
    return state


def sentence_vector(tensors: Tensors, tokens: Sequence[int]) -> Array:
    """Return the mean of the hidden state, scaled to length 1."""
    mean = hidden_state(tensors, tokens).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


class Bert:
    def __init__(self, tensors: Tensors) -> None:
        self.tensors = {name: value.astype(np.float64) for name, value in tensors.items()}

    def embed(self, tokens: Sequence[int]) -> Array:
        words = self.tensors["embeddings.word_embeddings.weight"][list(tokens)]
        positions = self.tensors["embeddings.position_embeddings.weight"][: len(tokens)]
        segment = self.tensors["embeddings.token_type_embeddings.weight"][0]
        return self.norm("embeddings.LayerNorm", words + positions + segment)

    def layer(self, name: str, state: Array) -> Array:
        attended = self.linear(f"{name}attention.output.dense", self.attention(f"{name}attention.self.", state))
        state = self.norm(f"{name}attention.output.LayerNorm", attended + state)
        wide = self.linear(f"{name}intermediate.dense", state)
        activated = wide * (1 + erf(wide / math.sqrt(2))) / 2
        return self.norm(f"{name}output.LayerNorm", self.linear(f"{name}output.dense", activated) + state)

    def attention(self, name: str, state: Array) -> Array:
        query, key, value = (self.linear(name + part, state) for part in ("query", "key", "value"))
        heads = []
        for head in range(12):
            columns = slice(head * 32, head * 32 + 32)
            scores = query[:, columns] @ key[:, columns].T / math.sqrt(32)
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(odds / odds.sum(axis=1, keepdims=True) @ value[:, columns])
        return np.concatenate(heads, axis=1)

    def linear(self, name: str, state: Array) -> Array:
        return np.asarray(state @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"])

    def norm(self, name: str, state: Array) -> Array:
        centred = state - state.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return np.asarray(centred / deviation * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"])


def random_tensors(vocabulary: int, seed: int = 7) -> dict[str, NDArray[np.float32]]:
    """Return tensors of the right names and shapes that mean nothing."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocabulary, 384),
        "embeddings.position_embeddings.weight": (512, 384),
        "embeddings.token_type_embeddings.weight": (2, 384),
        "embeddings.LayerNorm.weight": (384,),
        "embeddings.LayerNorm.bias": (384,),
    }
    parts = {
        "attention.self.query": (384, 384),
        "attention.self.key": (384, 384),
        "attention.self.value": (384, 384),
        "attention.output.dense": (384, 384),
        "intermediate.dense": (1536, 384),
        "output.dense": (384, 1536),
        "attention.output.LayerNorm": (384,),
        "output.LayerNorm": (384,),
    }
    for layer in range(6):
        for part, shape in parts.items():
            shapes[f"encoder.layer.{layer}.{part}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{part}.bias"] = shape[:1]
    tensors = {name: random.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
    for name, value in tensors.items():
        if name.endswith("LayerNorm.weight"):
            # Around 1, as after training: smaller ones would hide what comes before them.
            value += 1
    return tensors


def write_graph(model: Path, tensors: Mapping[str, NDArray[np.float32]]) -> Path:
    """Write the graph of tensors to a file and its weights beside it, and return the file."""
    graph, weights = onnx_graph.build_bert_model(tensors, "weights")
    model.write_bytes(graph)
    model.with_name("weights").write_bytes(weights)
    return model
