"""TEMPLATE does what every device must."""

from __future__ import annotations

import pytest

from headrace.plugins.template import create_plugin
from headrace.sdk import Plugin, Services
from headrace.testing import DeviceConformance


class TestTemplate(DeviceConformance):
    @pytest.fixture
    def plugin(self, services: Services) -> Plugin:
        return create_plugin("TEMPLATE", services, {})
