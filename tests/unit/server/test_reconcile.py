"""The steps from what a server has of a network to what it should have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.loading.shadows.shadow import NO_SHADOW, Shadow
from headrace.server.reconcile import (
    NOTHING,
    AwaitFiles,
    ChangeConfig,
    Condition,
    GiveShadow,
    Have,
    LastLoad,
    LoadVersion,
    ShareRequests,
    Step,
    TakeOver,
    UnloadVersion,
    Want,
    WantedVersion,
    steps,
)

LOADING, READY = Condition.LOADING, Condition.READY
FAILED, UNLOADED = Condition.FAILED, Condition.UNLOADED


def have(condition: Condition = READY, may_pass: bool = False, **versions: str) -> Have:
    """Versions `v1`, `v2`, … by their stamps."""
    return Have(
        {v[1:]: LastLoad(stamp, condition, may_pass=may_pass) for v, stamp in versions.items()}
    )


def want(at_rest: bool = True, **versions: str) -> Want:
    return Want({v[1:]: WantedVersion(stamp, at_rest=at_rest) for v, stamp in versions.items()})


def test_missing_versions_are_loaded_in_the_order_of_their_numbers() -> None:
    assert steps(NOTHING, want(v10="a", v9="a")) == [LoadVersion("9"), LoadVersion("10")]


def test_a_version_whose_stamp_changed_is_loaded_again() -> None:
    assert steps(have(v1="a"), want(v1="b")) == [LoadVersion("1")]
    assert steps(have(v1="a"), want(v1="a")) == []


def test_files_that_are_not_at_rest_are_waited_for_and_nothing_leaves_meanwhile() -> None:
    assert steps(have(v1="a"), want(at_rest=False, v2="b")) == [AwaitFiles("2")]


def test_a_failed_load_is_tried_again_only_if_it_may_pass_and_the_caller_retries() -> None:
    wanted = want(v1="a")
    assert steps(have(FAILED, v1="a"), wanted) == []
    failed = have(FAILED, may_pass=True, v1="a")
    assert steps(failed, wanted) == [LoadVersion("1")]
    assert steps(failed, replace(wanted, retry=False)) == []


def test_a_version_that_a_client_unloaded_comes_back_only_with_another_stamp() -> None:
    assert steps(have(UNLOADED, v1="a"), want(v1="a")) == []
    assert steps(have(UNLOADED, v1="a"), want(v1="b")) == [LoadVersion("1")]


def test_a_version_that_is_loading_is_left_until_it_has_ended() -> None:
    assert steps(have(LOADING, v1="a", v2="x"), want(v1="b")) == []


def test_an_unwanted_version_leaves_after_the_wanted_ones_are_loaded() -> None:
    assert steps(have(v1="a"), want(v2="b")) == [LoadVersion("2"), UnloadVersion("1")]


def test_an_unwanted_version_stays_while_a_wanted_one_cannot_be_loaded() -> None:
    stuck = Have({"1": LastLoad("a"), "2": LastLoad("b", FAILED)})
    assert steps(stuck, want(v2="b")) == []
    assert steps(stuck, replace(want(v2="b"), gone={"1"})) == [UnloadVersion("1")]


def test_an_unwanted_version_that_failed_leaves_at_once() -> None:
    stuck = Have({"1": LastLoad("a", FAILED), "2": LastLoad("b", FAILED)})
    assert steps(stuck, want(v2="b")) == [UnloadVersion("1")]


def test_nothing_leaves_while_more_files_may_come() -> None:
    assert steps(have(v1="a", v2="b"), replace(want(v2="b"), unsure=True)) == []


def test_a_load_alone_replaces_the_others_by_itself() -> None:
    wanted = replace(want(v2="b"), alone=True)
    assert steps(have(v1="a"), wanted) == [LoadVersion("2")]


def test_changed_keys_need_no_load() -> None:
    wanted = Want({"1": WantedVersion("a", {"K": "1"})})
    assert steps(have(v1="a"), wanted) == [ChangeConfig("1", {"K": "1"})]


def test_shares_are_set_before_a_version_leaves_that_had_some() -> None:
    loaded = replace(have(v1="a", v2="b"), shares={"1": 100})
    assert steps(loaded, want(v2="b")) == [ShareRequests({}), UnloadVersion("1")]


def test_a_network_that_nobody_wants_is_unloaded_whole() -> None:
    assert steps(have(v1="a"), None) == [UnloadVersion()]


@pytest.mark.parametrize("wanted", [want(v1="a"), None])
def test_somebody_elses_network_keeps_its_name(wanted: Want | None) -> None:
    assert steps(Have(anothers=True), wanted) == []


def test_a_name_is_taken_over_when_all_versions_are_ready() -> None:
    wanted = replace(want(v1="a"), take_over=True, shares={"1": 100})
    theirs = Have(anothers=True)
    first = [LoadVersion("1"), TakeOver(), ShareRequests({"1": 100})]
    assert steps(theirs, wanted) == first
    loading = replace(have(LOADING, v1="a"), anothers=True)
    assert steps(loading, wanted) == []
    ready = replace(have(v1="a"), anothers=True)
    assert steps(ready, wanted) == first[1:]


def test_a_name_that_cannot_be_taken_over_whole_is_left_whole() -> None:
    wanted = replace(want(v1="a", v2="b"), take_over=True)
    half = Have({"1": LastLoad("a"), "2": LastLoad("b", FAILED)}, anothers=True)
    assert steps(half, wanted) == [UnloadVersion("1"), UnloadVersion("2")]


# -- any network --

VERSIONS = st.sampled_from("123")
STAMPS = st.sampled_from("ab")
CONFIGS = st.dictionaries(st.just("K"), STAMPS)
SHARES = st.dictionaries(VERSIONS, st.just(30))
LAST_LOADS = st.builds(LastLoad, STAMPS, st.sampled_from(Condition), CONFIGS, st.booleans())
SHADOWS = st.none() | st.builds(Shadow, VERSIONS)
HAVES = st.builds(
    Have, st.dictionaries(VERSIONS, LAST_LOADS), SHARES, SHADOWS, anothers=st.booleans()
)
WANTED = st.dictionaries(VERSIONS, st.builds(WantedVersion, STAMPS, CONFIGS, st.booleans()))
WANTS = st.builds(
    Want,
    WANTED,
    SHARES,
    SHADOWS,
    gone=st.sets(VERSIONS),
    unsure=st.booleans(),
    retry=st.booleans(),
    take_over=st.booleans(),
)


def after(there: Have, wanted: Want, step: Step) -> Have:
    """What the server has after a step that succeeded."""
    versions = dict(there.loads)
    match step:
        case LoadVersion(v):
            versions[v] = LastLoad(wanted.versions[v].stamp, READY, wanted.versions[v].config)
        case ChangeConfig(v, config):
            versions[v] = replace(versions[v], config=config)
        case UnloadVersion(v):
            del versions[v]
        case ShareRequests(shares):
            return replace(there, shares=shares)
        case GiveShadow(shadow):
            assert shadow == (wanted.shadow or NO_SHADOW)
            return replace(there, shadow=wanted.shadow)
        case TakeOver():
            return replace(there, anothers=False)
    return replace(there, loads=versions)


@given(HAVES, WANTS)
def test_the_steps_lead_to_what_is_wanted(there: Have, wanted: Want) -> None:
    loads = {v: replace(each, condition=READY) for v, each in there.loads.items()}
    there = replace(there, loads=loads, anothers=False)
    versions = {v: replace(each, at_rest=True) for v, each in wanted.versions.items()}
    wanted = replace(wanted, versions=versions, unsure=False, take_over=False)
    for step in steps(there, wanted):
        there = after(there, wanted, step)
    assert (there.shares, there.shadow) == (wanted.shares, wanted.shadow)
    assert there.loads.keys() == wanted.versions.keys()
    for version, each in wanted.versions.items():
        assert (there.loads[version].stamp, there.loads[version].config) == (
            each.stamp,
            each.config,
        )
    assert steps(there, wanted) == []


@given(HAVES, WANTS)
def test_what_serves_stays_until_all_that_is_wanted_serves(there: Have, wanted: Want) -> None:
    wanted = replace(wanted, gone=(), take_over=False)
    for step in steps(there, wanted):
        if isinstance(step, UnloadVersion) and there.loads[step.version].condition is READY:
            ready = {v for v, each in there.loads.items() if each.condition is READY}
            assert wanted.versions.keys() <= ready
        there = after(there, wanted, step)


@given(HAVES, WANTS)
def test_nothing_is_loaded_that_is_loading_or_whose_files_may_be_incomplete(
    there: Have, wanted: Want
) -> None:
    for step in steps(there, wanted):
        if isinstance(step, LoadVersion):
            assert wanted.versions[step.version].at_rest
            last = there.loads.get(step.version)
            assert last is None or last.condition is not LOADING


@given(HAVES, WANTS)
def test_a_wanted_version_is_never_unloaded(there: Have, wanted: Want) -> None:
    wanted = replace(wanted, take_over=False)
    unloaded = {s.version for s in steps(there, wanted) if isinstance(s, UnloadVersion)}
    assert not unloaded & wanted.versions.keys()
