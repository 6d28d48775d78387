"""What the codec says of JSON that is no message."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from cstp_grpc.contract.json_codec import CodecError, from_json


def violations(data: Any, kind: type[Message]) -> dict[str, str]:
    with pytest.raises(CodecError) as caught:
        from_json(data, kind)
    return {item.field: item.description for item in caught.value.violations}
