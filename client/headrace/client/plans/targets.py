"""The metrics and the configuration of a target, which is a device or a network."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client import options as client_options
from headrace.client.errors import bad_reply
from headrace.client.options import ConfigValue
from headrace.client.plans.plan import CallMethod, Plan
from headrace.v1 import inference_engine_pb2 as pb
from headrace.wire.parameters import ParameterValue, decode_parameter


def get_metric(
    target: pb.Target, name: str, options: Mapping[str, str] | None, timeout: float | None
) -> Plan[ParameterValue]:
    request = pb.GetMetricRequest(target=target, name=name, options=options)
    reply: pb.GetMetricReply = yield CallMethod("GetMetric", request, timeout)
    return _value(reply.value)


def get_config(
    target: pb.Target, name: str, options: Mapping[str, str] | None, timeout: float | None
) -> Plan[ParameterValue]:
    request = pb.GetConfigRequest(target=target, name=name, options=options)
    reply: pb.GetConfigReply = yield CallMethod("GetConfig", request, timeout)
    return _value(reply.value)


def set_config(
    target: pb.Target, config: Mapping[str, ConfigValue], timeout: float | None
) -> Plan[None]:
    request = pb.SetConfigRequest(target=target, config=client_options.config(config))
    yield CallMethod("SetConfig", request, timeout)


def _value(parameter: pb.Parameter) -> ParameterValue:
    try:
        return decode_parameter(parameter)
    except ValueError as error:
        raise bad_reply(str(error)) from error
