"""Repairs Unique in OpenVINO's graph, under the rules of `repairs`."""

from __future__ import annotations

from functools import partial

import numpy as np

from headrace.plugins.openvino.graph.empty_tensors import never_empty
from headrace.plugins.openvino.library import change_readers, openvino, operations
from headrace.runtime.errors import InvalidModel


def unique(operation: openvino.Node) -> None:
    """The kernel does not run without elements, and then its outputs have no shape. A layer that
    reads them ends the process. So an axis without elements gets one, and what the kernel finds
    there is cut away. Without an axis, unsorted elements are wrong if nothing reads the inverse, so
    the kernel gets a list and its axis. Along another axis than the first one, the kernel compares
    parts wrongly, so that axis becomes the first one. If the compiler adds a conversion after the
    kernel, as for bfloat16, that conversion may read where an earlier request's elements were. So
    the elements are taken from the data by their indices. Of parts that have several elements of 8
    bits, the indices and counts are wrong, so these are compared as wider ones. No case shows any
    of this.

    Raises:
        InvalidModel: the number of axes is not known.
    """
    data, axis = operation.input_value(0), np.int64(0)
    attributes = operation.get_attributes()
    flat = operation.get_input_size() == 1
    if flat:
        data = operations.reshape(data, np.array([-1]), special_zero=False).output(0)
    else:
        axis = operation.input_value(1).get_node().data.reshape(())
    shape = data.get_partial_shape()
    if shape.rank.is_dynamic:
        raise InvalidModel("Unique takes parts of a tensor of unknown rank", field="model")
    axes = list(range(len(shape)))
    order = [axes.pop(axis), *axes]
    turned = operations.transpose(never_empty(data, order), np.array(order))
    along = None if flat and attributes["sorted"] else np.int64(0)
    narrow = turned.get_element_type().size == 1
    compared = operations.convert(turned, "i32") if narrow else turned
    made = operations.unique(compared, along, **attributes)
    parts = operations.gather(turned, made.output(1), np.int64(0))
    back = operations.transpose(parts, np.argsort(order)).output(0)
    sizes = operations.shape_of(data)
    found = (back, *made.outputs()[1:])
    for index, cut in enumerate((sorted(order), [axis], [axis], [axis])):
        ends = operations.gather(sizes, np.array(cut), np.int64(0))
        change_readers(operation.output(index), partial(_first, found[index], ends))


def _first(value: openvino.Output, ends: openvino.Node, _: openvino.Output) -> openvino.Node:
    """The first elements of the value along all of its axes."""
    count = ends.get_output_shape(0)[0]
    zeros, ones = (operations.constant(np.full(count, each)) for each in (0, 1))
    return operations.slice(value, zeros, ends, ones)
