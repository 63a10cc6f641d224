"""The conformance suite for device plugins, and tiny networks to try them with.

To test a plugin, write a file like this one, which pytest collects:

    class TestTemplate(DeviceConformance):
        @pytest.fixture
        def plugin(self, services: Services) -> Plugin:
            return create_plugin("TEMPLATE", services, {})
"""

import pytest

# Before the suite is imported, so that its assertions say what they compared.
pytest.register_assert_rewrite("headrace.testing.suite", "headrace.testing.compare")

from headrace.testing.suite import DeviceConformance  # noqa: E402 - see above

__all__ = ["DeviceConformance"]
