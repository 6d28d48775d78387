"""The BERT encoder of all-MiniLM-L6-v2 as an ONNX graph, written from its tensors.

Inputs and output are those of the exports that others publish, so that one embedder runs both: `input_ids`,
`attention_mask` and `token_type_ids` (int64, batch x length) become `last_hidden_state` (float32, batch x length x
hidden). Most weights are int8, and so are their inputs, token by token (docs/adr/0031).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

LAYERS = 6
HIDDEN = 384
HEADS = 12
HEAD = HIDDEN // HEADS
EPSILON = 1e-12
"""These five are those of the model's published config.json; the last is layer_norm_eps."""
MASKED_SCORE = -1e9
"""Added to the attention score of a padded token, so that its softmax is 0. Finite, because a row of -inf gives NaN."""

WEIGHT_LEVELS = 100
"""The largest magnitude of a weight's code. Measured: with 127, sums of two products exceed the 16 bits that processors
without VNNI give them, and the vectors differ from those of other processors."""
INPUT_LEVELS = 127
"""The same for inputs."""
EXACT = "attention.self.value"
"""The weights that stay float32. Measured: in int8 they cause most of the error, and save a tenth of the time."""

OPSET = 20
"""The first opset with Gelu."""
RUNTIME = "com.microsoft"
"""The domain of the operators that ONNX Runtime adds."""
IR_VERSION = 10
"""Chosen: lower than the onnx package's own, so that older versions of ONNX Runtime load the file too."""

MAX_INLINE_BYTES = 1024
"""Maximum bytes of a constant inside the graph; larger ones go to the weights file, where they can be mapped."""
ALIGNMENT = 4096
"""Bytes of a memory page, at which constants in the weights file start: ONNX asks for it where data is to be mapped."""

Tensors = Mapping[str, NDArray[np.float32]]


def build_bert_model(tensors: Tensors, weights_file: str) -> tuple[bytes, bytes]:
    """Return the serialised model and its external weights, which belong into a file of the given name.

    ONNX Runtime maps that file; weights inside the model would be in memory twice during loading and once afterwards.
    Raises KeyError with the name of a missing tensor.
    """
    graph = BertGraph(tensors, weights_file)
    serialised: bytes = graph.build().SerializeToString()
    return serialised, bytes(graph.weights)


class BertGraph:
    """Builds the nodes and constants of one graph; values are referred to by name."""

    def __init__(self, tensors: Tensors, weights_file: str) -> None:
        self._tensors = tensors
        self._weights_file = weights_file
        self._nodes: list[NodeProto] = []
        self._constants: dict[str, TensorProto] = {}
        self.weights = bytearray()
        """The content of the weights file."""

    def build(self) -> ModelProto:
        """Return the model."""
        hidden = self._embeddings()
        bias = self._attention_bias()
        for layer in range(LAYERS):
            hidden = self._layer(hidden, bias, f"encoder.layer.{layer}.")
        self._nodes.append(helper.make_node("Identity", [hidden], ["last_hidden_state"]))
        shape = ["batch", "length"]
        graph = helper.make_graph(
            self._nodes,
            "bert",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, shape)
                for name in ("input_ids", "attention_mask", "token_type_ids")
            ],
            [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, HIDDEN])],
            list(self._constants.values()),
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(RUNTIME, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def _embeddings(self) -> str:
        """Add the sum of word, position and segment embeddings, normalised."""
        words = self._op("Gather", self._tensor("embeddings.word_embeddings.weight"), "input_ids")
        segments = self._op("Gather", self._tensor("embeddings.token_type_embeddings.weight"), "token_type_ids")
        length = self._op("Shape", "input_ids", start=1, end=2)
        start = self._constant("first_position", np.array([0], np.int64))
        positions = self._op("Slice", self._tensor("embeddings.position_embeddings.weight"), start, length)
        summed = self._op("Add", self._op("Add", words, segments), positions)
        return self._norm(summed, "embeddings.LayerNorm")

    def _attention_bias(self) -> str:
        """Add the bias of attention scores: 0 for a token, MASKED_SCORE for padding; batch x 1 x 1 x length."""
        axes = self._constant("mask_axes", np.array([1, 2], np.int64))
        mask = self._op("Cast", self._op("Unsqueeze", "attention_mask", axes), to=TensorProto.FLOAT)
        padding = self._op("Sub", self._constant("one", np.array(1, np.float32)), mask)
        return self._op("Mul", padding, self._constant("masked", np.array(MASKED_SCORE, np.float32)))

    def _layer(self, hidden: str, bias: str, name: str) -> str:
        """Add a transformer layer: self-attention, then the feed-forward network, each with a residual."""
        attended = self._attention(hidden, bias, f"{name}attention.self.")
        projected = self._linear(attended, f"{name}attention.output.dense")
        hidden = self._norm(self._op("Add", projected, hidden), f"{name}attention.output.LayerNorm")
        wide = self._op("Gelu", self._linear(hidden, f"{name}intermediate.dense"))
        narrow = self._linear(wide, f"{name}output.dense")
        return self._norm(self._op("Add", narrow, hidden), f"{name}output.LayerNorm")

    def _attention(self, hidden: str, bias: str, name: str) -> str:
        """Add scaled dot-product attention over all heads; batch x length x hidden."""
        query = self._heads(hidden, f"{name}query", [0, 2, 1, 3])
        # Transposed for the product with the queries: batch x heads x feature x length.
        key = self._heads(hidden, f"{name}key", [0, 2, 3, 1])
        value = self._heads(hidden, f"{name}value", [0, 2, 1, 3])
        scale = self._constant("attention_scale", np.array(HEAD**-0.5, np.float32))
        scores = self._op("Add", self._op("Mul", self._op("MatMul", query, key), scale), bias)
        mixed = self._op("MatMul", self._op("Softmax", scores, axis=-1), value)
        merged = self._constant("merged_heads", np.array([0, 0, HIDDEN], np.int64))
        return self._op("Reshape", self._op("Transpose", mixed, perm=[0, 2, 1, 3]), merged)

    def _heads(self, hidden: str, name: str, order: list[int]) -> str:
        """Add a projection of `hidden`, split into heads, with axes (batch, length, head, feature) in `order`."""
        split = self._constant("split_heads", np.array([0, 0, HEADS, HEAD], np.int64))
        return self._op("Transpose", self._op("Reshape", self._linear(hidden, name), split), perm=order)

    def _linear(self, value: str, name: str) -> str:
        # PyTorch stores the weight of a linear layer as outputs x inputs.
        weight, bias = self._tensors[f"{name}.weight"].T, self._tensor(f"{name}.bias")
        if name.endswith(EXACT):
            return self._op("Add", self._op("MatMul", value, self._constant(f"{name}.weight", weight)), bias)
        scales = np.abs(weight).max(axis=0) / np.float32(WEIGHT_LEVELS)
        weights = self._constant(f"{name}.codes", np.rint(weight / scales).astype(np.int8))
        # A scale for each token: with one for all, those of other texts in the batch would count.
        largest = self._op("ReduceMax", self._op("Abs", value), self._constant("last_axis", np.array([-1], np.int64)))
        steps = self._op("Mul", largest, self._constant("input_step", np.array(1 / INPUT_LEVELS, np.float32)))
        one, zero = self._constant("one", np.array(1, np.float32)), self._constant("zero", np.array(128, np.uint8))
        inputs = self._op("QuantizeLinear", self._op("Div", value, steps), one, zero)
        scaled = self._constant(f"{name}.scales", scales)
        product = self._op("MatMulIntegerToFloat", inputs, weights, one, scaled, zero, domain=RUNTIME)
        return self._op("Add", self._op("Mul", product, steps), bias)

    def _norm(self, value: str, name: str) -> str:
        weight, bias = self._tensor(f"{name}.weight"), self._tensor(f"{name}.bias")
        return self._op("LayerNormalization", value, weight, bias, axis=-1, epsilon=EPSILON)

    def _tensor(self, name: str) -> str:
        return self._constant(name, self._tensors[name])

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self._constants:
            constant = numpy_helper.from_array(np.ascontiguousarray(value), name)
            if len(constant.raw_data) > MAX_INLINE_BYTES:
                self._move_out(constant)
            self._constants[name] = constant
        return name

    def _move_out(self, constant: TensorProto) -> None:
        # Zero bytes up to the next page.
        self.weights += bytes(-len(self.weights) % ALIGNMENT)
        set_external_data(constant, self._weights_file, offset=len(self.weights), length=len(constant.raw_data))
        self.weights += constant.raw_data
        constant.ClearField("raw_data")

    def _op(self, kind: str, *inputs: str, **attributes: int | float | str | list[int]) -> str:
        output = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output
