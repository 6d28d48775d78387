from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from cstp_grpc.platform.embedding import onnx_graph
from tests.platform.embedding.reference import hidden_state, random_tensors, write_graph

VOCABULARY = 60


@pytest.fixture(scope="module")
def tensors() -> dict[str, NDArray[np.float32]]:
    return random_tensors(VOCABULARY)


@pytest.fixture(scope="module")
def session(
    tensors: dict[str, NDArray[np.float32]], tmp_path_factory: pytest.TempPathFactory
) -> onnxruntime.InferenceSession:
    model = write_graph(tmp_path_factory.mktemp("graph") / "model.onnx", tensors)
    return onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])


def run(
    session: onnxruntime.InferenceSession, tokens: Sequence[Sequence[int]], mask: Sequence[Sequence[int]]
) -> NDArray[np.float32]:
    ids = np.array(tokens, np.int64)
    inputs = {
        "input_ids": ids,
        "attention_mask": np.array(mask, np.int64),
        "token_type_ids": np.zeros_like(ids),
    }
    (hidden,) = session.run(["last_hidden_state"], inputs)
    return np.asarray(hidden)


def assert_close(hidden: NDArray[np.float32], expected: NDArray[np.float64]) -> None:
    """Fail if a token has another direction or length than int8 weights explain."""
    lengths = np.linalg.norm(expected, axis=1)
    np.testing.assert_allclose(np.linalg.norm(hidden, axis=1), lengths, rtol=0.01)
    assert (np.vecdot(hidden, expected) > 0.998 * lengths * np.linalg.norm(hidden, axis=1)).all()


@pytest.mark.parametrize("length", [1, 2, 13, 256])
def test_the_graph_computes_bert(
    length: int, session: onnxruntime.InferenceSession, tensors: dict[str, NDArray[np.float32]]
) -> None:
    tokens = [(7 * position + 3) % VOCABULARY for position in range(length)]
    hidden = run(session, [tokens], [[1] * length])
    assert hidden.shape == (1, length, 384)
    assert_close(hidden[0], hidden_state(tensors, tokens))


def test_padding_changes_nothing(
    session: onnxruntime.InferenceSession, tensors: dict[str, NDArray[np.float32]]
) -> None:
    hidden = run(session, [[5, 6, 7, 0, 0], [1, 2, 3, 4, 5]], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert_close(hidden[0, :3], hidden_state(tensors, [5, 6, 7]))
    assert_close(hidden[1], hidden_state(tensors, [1, 2, 3, 4, 5]))
    alone = run(session, [[5, 6, 7]], [[1, 1, 1]])
    np.testing.assert_allclose(hidden[0, :3], alone[0], atol=1e-5)


def test_the_segment_of_a_token_counts(session: onnxruntime.InferenceSession) -> None:
    ids, ones = np.array([[4, 5]], np.int64), np.ones((1, 2), np.int64)
    first, second = (
        session.run(None, {"input_ids": ids, "attention_mask": ones, "token_type_ids": segment})[0]
        for segment in (np.zeros_like(ids), np.ones_like(ids))
    )
    assert not np.allclose(first, second, atol=1e-2)


def test_a_missing_tensor_is_named(tensors: dict[str, NDArray[np.float32]]) -> None:
    lacking = {name: value for name, value in tensors.items() if name != "encoder.layer.3.output.dense.bias"}
    with pytest.raises(KeyError, match=r"encoder\.layer\.3\.output\.dense\.bias"):
        onnx_graph.build_bert_model(lacking, "weights")


def test_weights_lie_in_pages_of_their_own_beside_the_graph(tensors: dict[str, NDArray[np.float32]]) -> None:
    graph, weights = onnx_graph.build_bert_model(tensors, "weights")
    assert len(graph) < 100_000
    outside = [
        {entry.key: entry.value for entry in constant.external_data}
        for constant in onnx.load_from_string(graph).graph.initializer
        if constant.external_data
    ]
    assert {place["location"] for place in outside} == {"weights"}
    assert all(int(place["offset"]) % 4096 == 0 for place in outside)
    assert max(int(place["offset"]) + int(place["length"]) for place in outside) == len(weights)
