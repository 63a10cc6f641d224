"""A page that shows an OpenAPI document. It loads nothing and runs no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

_MAX_DEPTH: Final = 5
"""How many schemas within schemas are shown."""

_SECTIONS: Final = (
    ("Models", ("/v2/models",)),
    ("Model repository", ("/v2/repository",)),
    ("Shared memory", ("/v2/systemsharedmemory", "/v2/cudasharedmemory")),
    ("Settings", ("/v2/logging", "/v2/trace")),
    ("Server", ("",)),
)
"""The titles of the page's sections, and how the paths in each begin."""

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: .9rem; margin: .75rem 0 .25rem; }
p { margin: .25rem 0; }
details { border-top: 1px solid var(--line); }
summary { cursor: pointer; padding: .5rem .25rem; display: grid; gap: 0 .75rem;
  grid-template-columns: 3.5rem minmax(0, 3fr) minmax(0, 2fr); }
summary:hover { background: var(--soft); }
code, pre { font: 14px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
.method { font-weight: bold; }
.inside { padding: 0 .25rem 1rem 4.5rem; }
pre { background: var(--soft); border-radius: .25rem; margin: 0; overflow-x: auto;
  overflow-wrap: normal; padding: .5rem .75rem; }
@media (max-width: 40rem) {
  summary { grid-template-columns: 3.5rem minmax(0, 1fr); }
  .what { grid-column: 2; }
  .inside { padding-left: .25rem; }
}
"""


def page(document: Mapping[str, Any]) -> str:
    """The page in HTML."""
    schemas = document["components"]["schemas"]
    title = escape(document["info"]["title"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p>Version {escape(document["info"]["version"])}. Open a line to see the request and the reply. The
<a href="/v2/openapi.json">OpenAPI document</a> has the same for programs.</p>
{"".join(_sections(document["paths"], schemas))}
</body></html>
"""


def _sections(paths: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    left = dict(paths)
    for title, beginnings in _SECTIONS:
        chosen = {path: each for path, each in left.items() if path.startswith(beginnings)}
        left = {path: each for path, each in left.items() if path not in chosen}
        yield f"<h2>{title}</h2>\n"
        for path, methods in chosen.items():
            for method, operation in methods.items():
                yield _operation(path, method, operation, schemas)


def _operation(
    path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> str:
    parts = []
    if "requestBody" in operation:
        parts.append(_body("Request", operation["requestBody"]["content"], schemas))
    parts.append(_body("Reply", operation["responses"]["200"]["content"], schemas))
    return (
        f'<details><summary><code class="method">{method.upper()}</code>'
        f"<code>{escape(path).replace('/', '/<wbr>')}</code>"
        f'<span class="what">{escape(operation["summary"])}</span></summary>'
        f'<div class="inside">{"".join(parts)}</div></details>\n'
    )


def _body(title: str, content: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    schema = _resolved(content["application/json"]["schema"], schemas)
    about = f"<p>{escape(schema['description'])}</p>" if "description" in schema else ""
    shown = escape("\n".join(_lines(schema, schemas, _MAX_DEPTH)))
    return f"<h3>{title}</h3>{about}<pre>{shown}</pre>"


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else schemas[reference.rpartition("/")[2]]


def _lines(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int) -> list[str]:
    """JSON with types in the places of values."""
    schema = _resolved(schema, schemas)
    if "enum" in schema:
        return [" | ".join(f'"{each}"' for each in schema["enum"])]
    kind = schema["type"]
    if kind == "array":
        if "items" not in schema or not depth:
            return ["[…]"]
        return _wrapped("[", _lines(schema["items"], schemas, depth - 1), "]")
    if kind != "object":
        return [kind if isinstance(kind, str) else " | ".join(kind)]
    members = [(f'"{name}": ', each) for name, each in schema.get("properties", {}).items()]
    if "additionalProperties" in schema:
        members.append(('"…": ', schema["additionalProperties"]))
    if not members or not depth:
        return ["{…}" if members or "properties" not in schema else "{}"]
    inside: list[str] = []
    for number, (name, each) in enumerate(members):
        first, *rest = _lines(each, schemas, depth - 1)
        inside += [name + first, *rest]
        if number + 1 < len(members):
            inside[-1] += ","
    return _wrapped("{", inside, "}", always=True)


def _wrapped(start: str, inside: list[str], end: str, *, always: bool = False) -> list[str]:
    if len(inside) == 1 and not always:
        return [f"{start}{inside[0]}{end}"]
    return [start, *(f"  {line}" for line in inside), end]
