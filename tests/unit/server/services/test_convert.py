"""Messages in the runtime's words."""

from __future__ import annotations

import pytest

from headrace.runtime.errors import InvalidArgument
from headrace.server.services.convert import network_options
from headrace.v1 import inference_engine_pb2 as pb


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_options_are_taken_for_as_many_values_as_a_request_holds(field: str) -> None:
    request = pb.QueryNetworkRequest()
    options = getattr(request, field)
    for number in range(4096):
        options[f"x{number}"].layout = "NC"
    assert len(getattr(network_options(request), field)) == 4096
    options["one more"].layout = "NC"
    with pytest.raises(InvalidArgument, match=r"4097.*at most 4096") as caught:
        network_options(request)
    assert caught.value.field == field
