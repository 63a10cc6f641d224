"""The table of roles is complete: no method of a served service and no route is without one."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from prometheus_client import CollectorRegistry

from headrace.oip import open_inference_pb2
from headrace.server.access.identity import Role
from headrace.server.http.operations import operations_routes
from headrace.server.services.methods import Method
from headrace.server.services.reflection import SERVICES, ReflectionService
from headrace.v1 import inference_engine_pb2
from tests.support.access_table import methods, routes

DESCRIBED = (inference_engine_pb2, open_inference_pb2, health_pb2, reflection_pb2)


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], Method]:
    return {(each.service, each.name): each for each in methods()}


def test_every_method_of_every_served_service_has_one_row_with_a_role(
    table: dict[tuple[str, str], Method],
) -> None:
    ReflectionService([])  # describes the newer version of its service
    pool = descriptor_pool.Default()
    services = {service for service, _ in table}
    assert {*SERVICES} < services
    assert {name for file in DESCRIBED for name in file.DESCRIPTOR.services_by_name} == {
        each.rpartition(".")[2] for each in services
    }
    described = {
        (service, method.name)
        for service in services
        for method in pool.FindServiceByName(service).methods
    }
    assert described == set(table)
    assert len(table) == len(methods())
    assert all(isinstance(each.role, Role) for each in table.values())


def test_only_probes_and_the_empty_page_are_open(
    table: dict[tuple[str, str], Method],
) -> None:
    opened = {name for (_, name), each in table.items() if each.role is Role.OPEN}
    assert opened == {"Check", "Watch", "ServerLive", "ServerReady"}
    paths = {each.path for each in routes() if each.is_open}
    assert paths == {"/", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"}


def test_only_the_role_manage_changes_the_server(table: dict[tuple[str, str], Method]) -> None:
    names = {name for (_, name), each in table.items() if each.role is Role.MANAGE}
    assert names == {
        "UploadModel",
        "LoadNetwork",
        "UnloadNetwork",
        "SetConfig",
        "ImportNetwork",
        "ExportNetwork",
        "AddExtension",
        "SetTraffic",
        "SetShadow",
        "RegisterSharedMemory",
        "UnregisterSharedMemory",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "TraceSetting",
        "LogSettings",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
    }


def test_every_route_has_a_role_for_each_of_its_methods() -> None:
    for route in routes():
        assert set(route.roles) == route.methods
        assert all(isinstance(role, Role) for role in route.roles.values()), route.path


def test_a_post_that_changes_something_needs_more_than_its_get() -> None:
    both = [each.roles for each in routes() if {"GET", "POST"} <= set(each.roles)]
    assert both
    assert all((each["GET"], each["POST"]) == (Role.READ, Role.MANAGE) for each in both)


def test_metrics_are_open_only_if_the_operator_says_so() -> None:

    for opened, role in ((False, Role.READ), (True, Role.OPEN)):
        found = operations_routes(CollectorRegistry(), lambda: None, open_metrics=opened)
        assert [each.roles["GET"] for each in found if each.path == "/metrics"] == [role]


def test_a_method_without_a_role_cannot_be_made() -> None:
    with pytest.raises(TypeError):
        Method("service", "name", grpc.StatusCode, None, print, None)  # type: ignore[call-arg, arg-type]
