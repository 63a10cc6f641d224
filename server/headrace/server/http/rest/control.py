"""Routes for regions of shared memory, and for settings of the log and of traces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from headrace.runtime.errors import InvalidArgument
from headrace.server.access.identity import Role
from headrace.server.http.rest.bodies import Bodies, read_object
from headrace.server.http.rest.render import rendered
from headrace.server.http.rest.routes import Handler, RouteRow, said
from headrace.server.services.open_inference.models import Models
from headrace.server.services.open_inference.regions import RegionMethods
from headrace.server.services.open_inference.settings import trace_settings
from headrace.server.shared_memory.users import Caller
from headrace.wire.codec import CodecError

_SYSTEM: Final = "/v2/systemsharedmemory"
_CUDA: Final = "/v2/cudasharedmemory"


class ControlRoutes:
    """Belongs to the thread of the HTTP server's loop.

    Args:
        caller: returns the caller of a request.
        registration: the role that the registration of shared memory needs.
    """

    def __init__(
        self,
        models: Models,
        regions: RegionMethods,
        bodies: Bodies,
        caller: Callable[[Request], Awaitable[Caller]],
        registration: Role = Role.MANAGE,
    ) -> None:
        self._models = models
        self._registration = registration
        self._regions = regions
        self._bodies = bodies
        self._caller = caller

    def rows(self) -> list[RouteRow]:
        changed = "Settings"
        role, read, manage = self._registration, Role.READ, Role.MANAGE
        system = self._system_status, self._system_unregister, "SystemRegions"
        cuda = self._cuda_status, self._cuda_unregister, "CudaRegions"
        return [
            *_region_rows(_SYSTEM, role, *system),
            RouteRow(
                "POST",
                f"{_SYSTEM}/region/{{name}}/register",
                role,
                self._system_register,
                "Registers a part of a POSIX shared memory object.",
                "SystemRegion",
            ),
            *_region_rows(_CUDA, role, *cuda),
            RouteRow(
                "POST",
                f"{_CUDA}/region/{{name}}/register",
                role,
                self._cuda_register,
                "Is refused: headrace takes no memory of a GPU.",
            ),
            RouteRow("GET", "/v2/logging", read, self._log, "What is logged.", "", changed),
            RouteRow(
                "POST",
                "/v2/logging",
                manage,
                self._log,
                "Changes what is logged.",
                changed,
                changed,
            ),
            *(
                row
                for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting")
                for row in (
                    RouteRow(
                        "GET", path, read, self._trace, "What is traced: nothing.", "", changed
                    ),
                    RouteRow(
                        "POST",
                        path,
                        manage,
                        self._trace,
                        "Is refused if it asks for traces.",
                        changed,
                        changed,
                    ),
                )
            ),
        ]

    # -- shared memory --

    async def _system_status(self, request: Request) -> Response:
        reply = self._regions.system_status(await self._caller(request), _name(request))
        return _listed(reply)

    async def _system_register(self, request: Request) -> Response:
        given = await read_object(self._bodies, request, ("key", "offset", "byte_size"))
        key = given.get("key")
        if not isinstance(key, str):
            raise CodecError("key", "is missing, or is not text")
        offset, byte_size = (_size(given, name) for name in ("offset", "byte_size"))
        caller = await self._caller(request)
        return said(self._regions.system_register(caller, _name(request), key, offset, byte_size))

    async def _system_unregister(self, request: Request) -> Response:
        caller = await self._caller(request)
        return said(await self._regions.system_unregister(caller, _name(request)))

    async def _cuda_status(self, request: Request) -> Response:
        return _listed(self._regions.cuda_status(_name(request)))

    async def _cuda_register(self, _: Request) -> Response:
        return said(self._regions.cuda_register())

    async def _cuda_unregister(self, _: Request) -> Response:
        return said(self._regions.cuda_unregister())

    # -- settings --

    async def _log(self, request: Request) -> Response:
        given = await read_object(self._bodies, request) if request.method == "POST" else {}
        for name, value in given.items():
            if not isinstance(value, bool | int | str):
                raise CodecError(name[:100], "must be text, a number or a boolean")
        shown = rendered(self._models.log_settings(given))["settings"]
        return said({name: next(iter(value.values())) for name, value in shown.items()})

    async def _trace(self, request: Request) -> Response:
        given = await read_object(self._bodies, request) if request.method == "POST" else {}
        values = {name: _trace_values(name, value) for name, value in given.items()}
        shown = rendered(trace_settings(values))["settings"]
        # The form of Triton: levels are a list, and all other settings are single values.
        return said(
            {
                name: setting["value"] if name == "trace_level" else setting["value"][0]
                for name, setting in shown.items()
            }
        )


def _region_rows(
    root: str, role: Role, status: Handler, unregister: Handler, reply: str
) -> list[RouteRow]:
    one, read = f"{root}/region/{{name}}", Role.READ
    return [
        RouteRow(
            "GET", f"{root}/status", read, status, "All regions of the client's user.", "", reply
        ),
        RouteRow("GET", f"{one}/status", read, status, "One region.", "", reply),
        RouteRow("POST", f"{root}/unregister", role, unregister, "Forgets all regions."),
        RouteRow("POST", f"{one}/unregister", role, unregister, "Forgets one region."),
    ]


def _name(request: Request) -> str:
    return str(request.path_params.get("name", ""))


def _listed(message: Any) -> Response:
    """The regions, in the form of Triton's list."""
    return said(list(rendered(message)["regions"].values()))


def _size(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise CodecError(name, "takes a whole number from 0")
    return value


def _trace_values(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int) for each in values):
        raise InvalidArgument(f"trace setting {name[:100]!r} takes text", field=name[:100])
    return [str(each) for each in values]
