# SPDX-License-Identifier: Apache-2.0
"""The policy keeps its promises for all jobs, slots and tenants."""

import math
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl_scheduler.planning.jobs import Map, PolicyJob, PolicySlot, Schedule, Settings, Tenant
from ddl_scheduler.planning.model import MemoryModel, StepModel, sizes_list
from ddl_scheduler.planning.policy import plan_make

pytestmark = pytest.mark.pure

NOW = 1000.0
SETTINGS = Settings()


def slots_make(count: int, per_host: int = 4, kind: str = "", memory: int = 0) -> list[PolicySlot]:
    return [
        PolicySlot(f"{kind}{number}", f"{kind}host{number // per_host}", kind, memory)
        for number in range(count)
    ]


def job_make(name: str, arrival: float = 0.0, shares: int = 16, **more: object) -> PolicyJob:
    model = more.pop("model", StepModel(shares, 0.1, 0.002, 0.001, measured=True))
    return PolicyJob(name, more.pop("tenant", "a"), arrival, model, **more)  # type: ignore[arg-type]


MODELS = st.builds(
    StepModel,
    shares=st.sampled_from([1, 4, 12, 16, 64]),
    share=st.just(0.1),
    base=st.sampled_from([0.0, 0.01, 0.5]),
    doubling=st.sampled_from([0.0, 0.01]),
    across=st.sampled_from([0.0, 0.1]),
    measured=st.booleans(),
)
TENANTS = [
    Tenant("a"),
    Tenant("b", cap=5),
    Tenant("c", guarantee=6, weight=2.0),
    Tenant("d", cap=0),
]


@st.composite
def jobs_draw(draw: st.DrawFn) -> list[PolicyJob]:
    jobs = []
    for number in range(draw(st.integers(0, 12))):
        least = draw(st.integers(0, 6))
        jobs.append(
            PolicyJob(
                f"job{number}",
                draw(st.sampled_from("abcde")),
                draw(st.floats(0, NOW)),
                draw(MODELS),
                least,
                draw(st.integers(max(1, least), 64)),
                draw(st.integers(0, 2)),
                draw(st.sampled_from([1.0, 3.0])),
                draw(st.sampled_from(["", "", "gpu"])),
                draw(st.sampled_from([None, MemoryModel(10, 20)])),
                used=draw(st.sampled_from([0.0, 1e6])),
                waited=draw(st.floats(0, 9000)),
                changed=draw(st.sampled_from([-math.inf, NOW - 1])),
                cost=draw(st.sampled_from([0.5, 30.0])),
                steps_left=draw(st.sampled_from([math.inf, 10.0, 1000.0])),
                deadline=draw(st.sampled_from([math.inf, NOW + 60])),
            )
        )
    return jobs


SLOTS = st.builds(
    lambda count, gpus: [*slots_make(count, memory=90), *slots_make(gpus, 8, "gpu")],
    st.integers(0, 40),
    st.integers(0, 16),
)


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[PolicyJob], list[PolicySlot], Schedule]:
    """Draw jobs, of which some run already, slots of which some are lost, and the plan before."""
    slots, jobs = draw(SLOTS), draw(jobs_draw())
    before = draw(st.lists(st.sampled_from(jobs), unique=True)) if jobs else []
    plan = plan_make(before, slots, TENANTS, now=NOW - 10)
    lost = draw(st.sets(st.sampled_from(sorted({slot.host for slot in slots})))) if slots else set()
    kept = [slot for slot in slots if slot.host not in lost or draw(st.booleans())]
    return jobs, kept, plan


def check_map(plan: Schedule, jobs: list[PolicyJob], slots: list[PolicySlot]) -> None:
    """Check the properties that hold whatever happened before."""
    kinds = {slot.name: slot.kind for slot in slots}
    given_slots = [slot for own in plan.slots.values() for slot in own]
    assert len(given_slots) == len(set(given_slots)), "a slot has two jobs"
    by_tenant: Counter[str] = Counter()
    for job in jobs:
        own = plan.slots.get(job.name, ())
        assert all(kinds[slot] == job.kind for slot in own)
        limit = 90 if job.kind == "" else 0
        legal = sizes_list(job.model.shares, job.least, job.most, job.memory, limit)
        assert not own or len(own) in legal  # between minimum and maximum, and within memory
        assert bool(own) != (job.name in plan.waiting)
        by_tenant[job.tenant] += len(own)
    assert set(plan.slots) <= {job.name for job in jobs}
    for tenant in TENANTS:
        assert tenant.cap is None or by_tenant[tenant.name] <= tenant.cap


@given(question=questions())
def test_sizes_quotas_and_slots_are_legal(
    question: tuple[list[PolicyJob], list[PolicySlot], Schedule],
) -> None:
    jobs, slots, before = question
    check_map(plan_make(jobs, slots, TENANTS, before.slots, NOW), jobs, slots)


@given(question=questions())
def test_equal_questions_get_equal_answers(
    question: tuple[list[PolicyJob], list[PolicySlot], Schedule],
) -> None:
    jobs, slots, before = question
    plan = plan_make(jobs, slots, TENANTS, before.slots, NOW)
    again = plan_make(jobs[::-1], slots, TENANTS[::-1], dict(before.slots), NOW)
    assert plan == again


@given(question=questions())
def test_nothing_changes_by_itself(
    question: tuple[list[PolicyJob], list[PolicySlot], Schedule],
) -> None:
    """A plan that is computed again at once is the same, unless it was only possible because others
    had slots before."""
    jobs, slots, before = question
    plan = plan_make(jobs, slots, TENANTS, before.slots, NOW)
    for _ in range(3):
        before = plan
        plan = plan_make(jobs, slots, TENANTS, before.slots, NOW)
    assert plan.sizes == before.sizes
    assert plan.slots == before.slots


def speed(job: PolicyJob, size: int, slots: list[PolicySlot]) -> float:
    hosts = Counter(slot.host for slot in slots if slot.kind == job.kind)
    return job.model.speedup(size, 1 if size <= max(hosts.values()) else 2)


@given(question=questions())
def test_no_slot_is_idle_while_a_job_wants_it(
    question: tuple[list[PolicyJob], list[PolicySlot], Schedule],
) -> None:
    jobs, slots, before = question
    jobs = [replace(job, changed=-math.inf, cost=0.0, tier=0) for job in jobs]
    plan = plan_make(jobs, slots, [], before.slots, NOW)
    for kind in ("", "gpu"):
        free = sum(slot.kind == kind for slot in slots) - sum(
            plan.sizes.get(job.name, 0) for job in jobs if job.kind == kind
        )
        for job in (job for job in jobs if job.kind == kind):
            limit = 90 if kind == "" else 0
            legal = sizes_list(job.model.shares, job.least, job.most, job.memory, limit)
            size = plan.sizes.get(job.name, 0)
            if not size:
                assert not legal or legal[0] > free
                continue
            for larger in legal:
                if size < larger <= size + free:
                    gain = speed(job, larger, slots) - speed(job, size, slots)
                    assert gain / (larger - size) < SETTINGS.least_worth + 1e-6


@given(question=questions())
def test_a_minimum_that_can_be_met_is_met(
    question: tuple[list[PolicyJob], list[PolicySlot], Schedule],
) -> None:
    """No job has more than its minimum while another job waits for slots, and a later job that may
    be paused does not run."""
    jobs, slots, before = question
    jobs = [replace(job, deadline=math.inf) for job in jobs]
    plan = plan_make(jobs, slots, [], before.slots, NOW)
    for job in jobs:
        limit = 90 if job.kind == "" else 0
        legal = sizes_list(job.model.shares, job.least, job.most, job.memory, limit)
        if job.name in plan.slots or not legal:
            continue
        could = sum(slot.kind == job.kind for slot in slots)
        blocked = False
        for other in jobs:
            if other.kind != job.kind or other is job:
                continue
            size = plan.sizes.get(other.name, 0)
            own = sizes_list(other.model.shares, other.least, other.most, other.memory, limit)
            # The slots that it keeps from this job: its minimum, unless it may be paused for it.
            before = (-other.tier, other.arrival, other.name) < (-job.tier, job.arrival, job.name)
            could -= own[0] if size and (other.least or before) else 0
            blocked |= other.tier > job.tier and not size  # it waits, and slots are reserved for it
        assert blocked or could < legal[0]


@given(question=questions())
def test_what_runs_is_not_stopped(
    question: tuple[list[PolicyJob], list[PolicySlot], Schedule],
) -> None:
    """A job keeps its slots, whatever else arrives, unless it may be paused or slots are lost."""
    jobs, slots, before = question
    had = {slot for own in before.slots.values() for slot in own}
    if not had <= {slot.name for slot in slots}:
        return
    plan = plan_make(jobs, slots, TENANTS, before.slots, NOW)
    for job in jobs:
        assert not (job.least and job.name in before.slots) or job.name in plan.slots


def test_a_higher_tier_takes_all_but_minima() -> None:
    slots = slots_make(32)
    low = [job_make(f"low{n}", n, least=2, used=1e6) for n in range(3)]
    before = plan_make(low, slots, now=NOW - 10)
    assert sum(before.sizes.values()) == 32
    high = job_make("high", NOW, shares=64, least=4, tier=1)
    plan = plan_make([*low, high], slots, last=before.slots, now=NOW)
    assert plan.sizes["high"] >= 22
    assert all(2 <= plan.sizes[job.name] <= 4 for job in low)
    # No job's remaining slots move.
    assert all(set(plan.slots[job.name]) <= set(before.slots[job.name]) for job in low)


def test_weights_share_what_is_contended() -> None:
    jobs = [job_make(f"{tenant}{n}", shares=64, tenant=tenant) for tenant in "xy" for n in range(2)]
    tenants = [Tenant("x", weight=3.0), Tenant("y", weight=1.0)]
    sizes = plan_make(jobs, slots_make(64, 8), tenants).sizes
    assert sizes["x0"] + sizes["x1"] == 48 == 3 * (sizes["y0"] + sizes["y1"])


def test_a_guarantee_comes_before_other_tenants_tiers() -> None:
    high = [job_make(f"high{n}", tier=5, shares=64, tenant="x") for n in range(3)]
    low = job_make("low", NOW, tenant="y")
    slots = slots_make(64)
    assert plan_make([*high, low], slots).sizes["low"] <= 4  # the slots that the others leave
    tenants = [Tenant("y", guarantee=16)]
    before = plan_make(high, slots, tenants, now=NOW - 10)
    assert plan_make([*high, low], slots, tenants, before.slots, NOW).sizes["low"] == 16


def test_young_jobs_get_more() -> None:
    jobs = [job_make("old", shares=64, used=1e6), job_make("young", shares=64)]
    assert plan_make(jobs, slots_make(48)).sizes == {"young": 32, "old": 16}


def test_a_job_at_its_knee_leaves_slots_to_others() -> None:
    slow = job_make("slow", model=StepModel(64, 0.1, 0.3, 0.3, measured=True))
    good = job_make("good", 1.0, shares=32)
    sizes = plan_make([slow, good], slots_make(40, 40)).sizes
    assert sizes["good"] == 32
    assert sizes["slow"] <= 8
    # Alone a job gets more slots, but never so many that it becomes slower.
    alone = plan_make([slow], slots_make(64, 64)).sizes["slow"]
    assert all(
        slow.model.speedup(alone) >= slow.model.speedup(size)
        for size in sizes_list(64, 1, 64)
        if size <= alone
    )


def test_memory_is_respected() -> None:
    job = job_make("large", memory=MemoryModel(10, 10))
    slots = slots_make(8, memory=40)  # at most two partial gradients: 2 or 3 shares on a rank
    assert plan_make([job], slots[:6]).sizes["large"] == 6
    waiting = plan_make([job], slots[:5]).waiting["large"]
    assert waiting == "needs 6 slots; there are 5"
    none = plan_make([job], slots_make(8, memory=20)).waiting["large"]
    assert "more memory than the 20 bytes of a slot" in none


def test_reasons_for_waiting() -> None:
    slots = slots_make(8)
    jobs = [
        job_make("fills", 0, least=6, most=6),
        job_make("many", 1, least=4),
        job_make("huge", 2, least=16, shares=64),
        job_make("capped", 3, least=3, tenant="b"),
        job_make("none", 4, least=20),
    ]
    plan = plan_make(jobs, slots, [Tenant("b", cap=2)])
    assert plan.waiting == {
        "many": "needs 4 slots; the jobs before it leave 2 free",
        "huge": "needs 16 slots; there are 8",
        "capped": "needs 3 slots; tenant b may have 2",
        "none": "needs 20 to 4096 slots, but has 16 logical workers",
    }


def test_of_equals_the_one_that_has_it_keeps_it() -> None:
    names = [slot.name for slot in slots_make(24)]
    jobs = [job_make("first", 0.0), job_make("second", 1.0)]
    before = {"first": tuple(names[:8]), "second": tuple(names[8:])}
    assert plan_make(jobs, slots_make(24), last=before, now=NOW).slots == before


def test_growth_rests_and_pays() -> None:
    slots = slots_make(16)
    before = {"job": tuple(slot.name for slot in slots[:4])}
    rests = plan_make([job_make("job", changed=NOW - 1)], slots, last=before, now=NOW)
    assert rests.sizes["job"] == 4
    assert rests.again == NOW + 4
    grown = plan_make([job_make("job", changed=NOW - 6)], slots, last=before, now=NOW)
    assert grown.sizes["job"] == 16
    # Even a job that becomes three times as fast gains at most 180 s in a minute.
    costly = plan_make([job_make("job", cost=200.0)], slots, last=before, now=NOW)
    assert costly.sizes["job"] == 4


def test_places() -> None:
    slots = slots_make(16)  # 4 hosts with 4 slots each
    one = plan_make([job_make("a", most=4), job_make("b", 1.0, most=3)], slots)
    hosts = {slot.name: slot.host for slot in slots}
    assert all(len({hosts[slot] for slot in own}) == 1 for own in one.slots.values())
    before = {"a": ("0", "4", "5", "8")}
    shrunk = plan_make([job_make("a", most=2)], slots, last=before, now=NOW)
    assert shrunk.slots["a"] == ("4", "5")
    grown = plan_make([job_make("a", most=6, cost=0.0)], slots, last=before, now=NOW)
    assert grown.slots["a"] == ("0", "4", "5", "6", "7", "8")


def test_a_deadline_raises_a_job_within_its_tenant() -> None:
    slots = slots_make(16)
    rival = job_make("rival", shares=64, tenant="other", used=1e6)
    own = job_make("own", 1.0, shares=64, used=1e6)
    # 64 shares of 0.1 s: with 4 slots a step takes 1.6 s, with 7 slots 1 s.
    late = job_make("late", 2.0, shares=64, used=1e6, steps_left=100.0, deadline=NOW + 115)
    free = replace(late, deadline=math.inf)
    before = plan_make([rival, own, free], slots, now=NOW)
    assert (before.sizes["own"], before.sizes["late"]) == (4, 4)
    plan = plan_make([rival, own, late], slots, last=before.slots, now=NOW)
    assert plan.sizes["late"] == 7
    assert plan.sizes["rival"] >= before.sizes["rival"]
    assert plan.deadlines == {"late": "needs 7 slots from now on"}
    again = plan_make([rival, own, late], slots, last=plan.slots, now=NOW)
    assert (again.sizes, again.deadlines) == (plan.sizes, plan.deadlines)


def test_a_deadline_comes_before_the_tenants_higher_tier() -> None:
    own = job_make("own", shares=64, tier=1, used=1e6)
    late = job_make("late", shares=64, used=1e6, steps_left=100.0, deadline=NOW + 115)
    slots = slots_make(16)
    assert plan_make([own, replace(late, deadline=math.inf)], slots, now=NOW).sizes["late"] == 3
    assert plan_make([own, late], slots, now=NOW).sizes["late"] >= 7


def test_a_hopeless_deadline_is_said_to_be_so() -> None:
    job = job_make("late", steps_left=1000.0, deadline=NOW + 10)
    plan = plan_make([job], slots_make(8), [Tenant("a", cap=4)], now=NOW)
    assert plan.deadlines == {"late": "cannot be met: ends 394 s after it at best"}
    assert plan.sizes == {"late": 4}
    unknown = replace(job, model=StepModel(16))
    assert plan_make([unknown], slots_make(8), now=NOW).deadlines == {}


def starve(ageing: float) -> bool:
    """Return whether a job that needs half of the slots never starts, while one small job of a
    higher tier ends each minute and the next one already waits."""
    slots, rules = slots_make(8), Settings(ageing=ageing)
    last: Map = {}
    ends: dict[str, float] = {}  # of the small ones that run
    for minute in range(12 * 60):
        now = 60.0 * minute
        ends = {name: end for name, end in ends.items() if end > now}
        names = [*ends, *(f"small{minute}-{n}" for n in range(8))]
        small = [job_make(name, now, most=1, tier=1) for name in names]
        large = job_make("large", least=4, waited=now)
        last = plan_make([large, *small], slots, last=last, now=now, settings=rules).slots
        if "large" in last:
            return False
        for n, name in enumerate(sorted(set(last) - set(ends))):
            ends[name] = now + 60 * (n + 1 if minute == 0 else 8)
    return True


def test_no_job_starves_with_ageing() -> None:
    assert starve(math.inf)
    assert not starve(3600.0)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_job_ends(data: st.DataObject) -> None:
    """With ageing, each job that can run ends, whatever else arrives."""
    slots = slots_make(data.draw(st.integers(2, 12)))
    left: dict[str, float] = {}
    jobs: dict[str, PolicyJob] = {}
    last: Map = {}
    rules = Settings(ageing=600.0)
    stop = data.draw(st.integers(1, 40))
    for tick in range(2000):
        now = 60.0 * tick
        if tick < stop:
            for n in range(data.draw(st.integers(0, 3))):
                least = data.draw(st.integers(0, len(slots)))
                name = f"job{tick}-{n}"
                tier = data.draw(st.integers(0, 3))
                jobs[name] = job_make(name, now, shares=12, least=least, tier=tier)
                left[name] = data.draw(st.floats(10, 2000))
        if not jobs and tick >= stop:
            return
        plan = plan_make(list(jobs.values()), slots, last=last, now=now, settings=rules)
        for name, job in list(jobs.items()):
            size = plan.sizes.get(name, 0)
            left[name] -= 60 * job.model.speedup(size)
            jobs[name] = replace(job, waited=job.waited + 60 * (not size))
            if left[name] <= 0:
                del jobs[name]
        last = {name: own for name, own in plan.slots.items() if name in jobs}
    pytest.fail(f"{sorted(jobs)} wait for ever")


def test_the_example_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "scheduler.md").read_text()
    program, printed = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)[:2]
    exec(program, {})
    assert capsys.readouterr().out.strip() == printed.strip()


def test_a_thousand_slots() -> None:
    slots = slots_make(1000, 8)
    jobs = [
        job_make(f"job{n}", n, shares=(16, 32, 64)[n % 3], tier=n % 4 == 0, tenant="abc"[n % 3])
        for n in range(500)
    ]
    start = time.perf_counter()
    plan = plan_make(jobs[:-1], slots, TENANTS, now=NOW)
    again = plan_make(jobs, slots, TENANTS, plan.slots, NOW + 10)
    print(f"two plans in {time.perf_counter() - start:.3f} s")
    assert sum(plan.sizes.values()) == sum(again.sizes.values()) == 1000
