"""Tensors that are larger than any that OpenVINO can be asked for."""

from __future__ import annotations

import math
from typing import Final

from headrace.plugins.openvino.graph.empty_tensors import bodies
from headrace.plugins.openvino.library import openvino
from headrace.runtime.errors import InvalidModel

_MOST: Final = 2**31 - 1


def refuse_large(model: openvino.Model) -> None:
    """Checks all tensors of the model and its bodies. When OpenVINO compiles a network, it takes
    memory for each tensor, as far as it knows the sizes. It does not look whether it has got any,
    and writes. No case shows it.

    Raises:
        InvalidModel: a tensor has more than 2,147,483,647 elements, even if all sizes that are not
            known are 1.
    """
    for operation in model.get_ordered_ops():
        for body in bodies(operation):
            refuse_large(body)
        for shape in (output.get_partial_shape() for output in operation.outputs()):
            sizes = [] if shape.rank.is_dynamic else [each for each in shape if each.is_static]
            if math.prod(size.get_length() for size in sizes) > _MOST:
                raise InvalidModel(
                    f"{operation.get_type_name()} makes a tensor of more than {_MOST:,} elements",
                    field="model",
                )
