"""Each process of xdist collects a file when its turn comes. Otherwise all of them collect all
files before the first test, which takes each a quarter of a minute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest


class FileOfTests(pytest.Item):
    """Stands for all tests of a file until it is collected."""

    def tests(self) -> list[pytest.Item]:
        assert self.parent is not None
        module = pytest.Module.from_parent(self.parent, path=self.path)
        tests = list(self.session.genitems(module))
        given = {"session": self.session, "config": self.config, "items": tests}
        self.config.hook.pytest_collection_modifyitems(**given)
        return tests

    def runtest(self) -> None:
        raise NotImplementedError


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> object:
    nodeid = module_path.relative_to(parent.config.rootpath).as_posix()
    return FileOfTests.from_parent(parent, name=module_path.name, path=module_path, nodeid=nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Files are not chosen by name or marker: only their tests are. Those of the folders of tests/
    alternate: tests over sockets wait much, and others compute meanwhile."""
    turns: dict[str, Iterator[int]] = defaultdict(count)
    files = [each for each in items if isinstance(each, FileOfTests)]
    files.sort(key=lambda each: next(turns[each.nodeid.split("/")[1]]))
    yield
    items[:] = files or items


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs a file. xdist looks for each test that it reports in the place of the file."""
    if not isinstance(item, FileOfTests):
        return None
    session = item.session
    place, tests = session.items.index(item), item.tests()
    for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
        session.items[place] = test
        session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail or session.shouldstop:
            break
    session.items[place] = item
    if not tests:  # what the file before has kept for this one
        session._setupstate.teardown_exact(nextitem)
    return True
