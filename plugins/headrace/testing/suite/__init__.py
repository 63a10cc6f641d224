"""The tests that every device must pass. Each module tests one part of the contract."""

from headrace.testing.suite.concurrency import ConcurrencyConformance
from headrace.testing.suite.configuration import ConfigurationConformance
from headrace.testing.suite.deadlines import DeadlineConformance
from headrace.testing.suite.extensions import ExtensionConformance
from headrace.testing.suite.input_errors import InputErrorConformance
from headrace.testing.suite.loading import LoadConformance
from headrace.testing.suite.metrics import MetricConformance
from headrace.testing.suite.preprocessing import PreprocessingConformance
from headrace.testing.suite.profiling import ProfilingConformance
from headrace.testing.suite.query import QueryConformance
from headrace.testing.suite.requests import RequestConformance
from headrace.testing.suite.values import ValueConformance

__all__ = ["DeviceConformance"]


class DeviceConformance(
    ConfigurationConformance,
    MetricConformance,
    QueryConformance,
    LoadConformance,
    RequestConformance,
    DeadlineConformance,
    ConcurrencyConformance,
    InputErrorConformance,
    ValueConformance,
    PreprocessingConformance,
    ProfilingConformance,
    ExtensionConformance,
):
    """Subclass it as ``Test…`` and give it a `plugin` fixture; see `DeviceFixtures`."""
