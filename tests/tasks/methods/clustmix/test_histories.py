"""Tables of events: sensitivity by brute force, records by their definition, drawn histories."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import NoNoise, NotingExecutor, domain_with, norm_of

from privacy.errors import ConfigurationError
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.method import measure
from tasks.methods.clustmix.events.event_domain import (
    LEVELS,
    CodedColumn,
    EventDomain,
    Events,
    first_events,
    hidden_codes,
)
from tasks.methods.clustmix.events.event_release import EventRelease
from tasks.methods.clustmix.events.event_table import EventTable, labelled_rows
from tasks.methods.clustmix.events.histories import draw_histories, fitted

PATIENTS = domain_with(5, 2, numeric=(0,), patients=400)
DOMAINS = {
    "values": EventDomain(
        n_values=(4, 3, 1), value_missing=True, gaps=(0, 1, 30), offsets=(-10, 0, 10), most=6
    ),
    "kinds alone": EventDomain(n_values=(1, 1, 1), gaps=(0, 7), offsets=(0, 5, 10), most=4),
    "one kind": EventDomain(
        n_values=(4,),
        others=(CodedColumn(n_codes=2), CodedColumn(n_codes=3, numeric=True)),
        label=1,
        gaps=(0, 7),
        offsets=(0, 5, 10),
        most=5,
    ),
}
MU = 1.0


@pytest.fixture(params=DOMAINS, scope="module")
def table(request):
    domain = DOMAINS[request.param]
    return EventTable(events=domain, patients=PATIENTS, start=PATIENTS.n_columns, mu=MU)


def made_up(domain, n_patients, seed, *, most=9):
    """Histories of random length, none among them, in the order of a source."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(n_patients), rng.integers(0, most + 1, n_patients))
    sizes = [len(domain.places), *(one.n_codes for one in domain.others)]
    events = Events(
        patient=patient,
        moment=rng.integers(-12, 40, len(patient)).astype(float),
        codes=np.stack([rng.integers(k, size=len(patient)) for k in sizes], axis=1),
    )
    return events, rng.integers(2**63, size=len(patient)).astype(np.uint64)


def patient_codes(n_patients, seed=1):
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.integers(k, size=n_patients) for k in PATIENTS.n_codes]).astype(
        np.uint16
    )


def kept(domain, events, ties, patients):
    """First events of some of the patients, who keep their numbers."""
    chosen = np.isin(events.patient, patients)
    return first_events(domain, events.only(chosen), ties[chosen])


def test_no_history_moves_the_draw_by_more_than_planned_and_one_nearly_does(table):
    executor = NotingExecutor()
    events, ties = made_up(table.events, 60, 0)
    codes = patient_codes(60)
    everybody = kept(table.events, events, ties, range(12))
    rows = table.records(everybody, codes)
    curator = Curator(plan=table.plan, shards=[rows], noise_source=NoNoise(), executor=executor)
    table.measure(curator)
    assert curator.event.events == table.plan.event.events[:1]
    contribution, public = executor.asked[0]
    without, most = contribution(rows, **public), 0.0
    bound = table.plan["transitions"].l2_sensitivity
    for patient in range(12, 60):
        more = kept(table.events, events, ties, [*range(12), patient])
        moved = norm_of(contribution(table.records(more, codes), **public) - without)
        assert moved <= bound
        most = max(most, moved / bound)
    assert most > 0.999


def test_records_of_a_patient_depend_on_that_patient_alone_in_any_order(table):
    events, ties = made_up(table.events, 30, 2)
    codes, order = patient_codes(30), np.random.default_rng(3).permutation(len(ties))
    every = table.records(first_events(table.events, events, ties), codes)
    mixed = first_events(table.events, events.only(order), ties[order])
    np.testing.assert_array_equal(table.records(mixed, codes).codes, every.codes)
    start = 0
    for patient in range(30):
        own = table.records(kept(table.events, events, ties, [patient]), codes)
        np.testing.assert_array_equal(own.codes, every.codes[start : start + len(own)])
        assert own.weight.sum() == pytest.approx(min(len(own), 1))
        assert len(own) <= table.events.most
        start += len(own)


SMALL_DOMAINS = st.builds(
    EventDomain,
    n_values=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    value_missing=st.booleans(),
    others=st.lists(st.builds(CodedColumn, st.integers(2, 3)), max_size=2).map(tuple),
    gaps=st.sampled_from([(0,), (0, 7), (0, 1, 30)]),
    offsets=st.just((-10, 0, 10)),
    most=st.integers(1, 6),
)


@settings(max_examples=40, deadline=None)
@given(SMALL_DOMAINS, st.sampled_from([0.05, 1.0, 5.0]), st.integers(0, 2**32 - 1))
def test_neighbouring_cohorts_differ_by_the_records_of_one_patient(domain, mu, seed):
    table = EventTable(events=domain, patients=PATIENTS, start=PATIENTS.n_columns, mu=mu)
    n, executor = 5, NotingExecutor()
    events, ties = made_up(domain, n, seed)
    order, codes = np.random.default_rng(seed).permutation(len(ties)), patient_codes(n, seed)
    every = first_events(domain, events.only(order), ties[order])
    rows, hidden = table.records(every, codes), hidden_codes(domain, every, n_patients=n)
    table.measure(
        Curator(plan=table.plan, shards=[rows], noise_source=NoNoise(), executor=executor)
    )
    contribution, public = executor.asked[0]
    for one in range(n):
        left = np.arange(n) != one
        fewer = kept(domain, events, ties, np.flatnonzero(left))
        without, others = table.records(fewer, codes), rows.only(left[every.patient])
        for own, same in (
            (without.codes, others.codes),
            (without.weight, others.weight),
            (hidden_codes(domain, fewer, n_patients=n)[left], hidden[left]),
        ):
            np.testing.assert_array_equal(own, same)
        moved = contribution(rows, **public) - contribution(without, **public)
        assert norm_of(moved) <= table.plan["transitions"].l2_sensitivity


def test_records_are_those_of_their_definition():
    domain = DOMAINS["values"]
    events = Events(
        patient=np.zeros(4, dtype=np.intp),
        moment=np.array([5.0, 0.0, 0.0, 50.0]),
        codes=np.array([[3], [7], [2], [0]]),
    )
    table = EventTable(events=domain, patients=PATIENTS, start=2, mu=MU)
    ordered = first_events(replace(domain, most=3), events, np.zeros(4, dtype=np.uint64))
    found = table.records(ordered, np.array([[4, 1]], dtype=np.uint16))
    # Columns: given, number of events (bins from 1, 2, 3, 4, 5, 6), whether it is the last, joint
    # code before (8: none), gap (3: first), joint code, last value on the grid (5: none), level.
    # The third event of kind 0 is cut off; of the two left, one is missing and one at place 1.
    np.testing.assert_array_equal(
        found.codes[:, :9],
        [[4, 1, 2, 0, 8, 3, 2, 5, LEVELS - 1],
         [4, 1, 2, 0, 2, 0, 7, 5, LEVELS // 2],
         [4, 1, 2, 1, 7, 1, 3, 3, LEVELS - 1]],
    )  # fmt: skip
    np.testing.assert_allclose(found.weight, 1 / 3)
    # Kinds before and now, group of the place of the last value and of this one, level.
    none, missing = LEVELS + 1, LEVELS
    np.testing.assert_array_equal(
        found.codes[:, 9:],
        [[3, 0, none, 5, 5], [0, 2, none, missing, LEVELS // 2], [2, 0, 5, missing, 5]],
    )
    hidden = hidden_codes(domain, ordered, n_patients=2)
    np.testing.assert_array_equal(hidden, [[3, 1, LEVELS - 1, LEVELS, 0], [0, 2, 6, 6, 1]])


def chained(n_patients, seed):
    """A chain whose next kind is the next in a circle, whose values follow a patient's level."""
    rng = np.random.default_rng(seed)
    domain = EventDomain(n_values=(3, 3, 3), gaps=(0, 1, 10), offsets=(0, 50, 100), most=8)
    m = rng.integers(0, 9, n_patients)
    patient = np.repeat(np.arange(n_patients), m)
    t = np.arange(len(patient)) - np.repeat(np.cumsum(m) - m, m)
    level = rng.integers(3, size=n_patients)
    kind = (rng.integers(3, size=n_patients)[patient] + t) % 3
    noisy = rng.random(len(patient)) < 0.1
    value = np.where(noisy, rng.integers(3, size=len(patient)), level[patient])
    moment = rng.integers(0, 90, n_patients)[patient] + 3.0 * t
    return domain, Events(patient, moment, (3 * kind + value)[:, None])


def modelled(table, events, codes, hidden):
    """Fit a model to a draw without noise; return it, and patients who have the hidden codes."""
    rows, n = table.records(events, codes), len(codes)
    curator = Curator(plan=table.plan, shards=[rows], noise_source=NoNoise())
    synthetic = np.concatenate([codes, hidden.astype(np.uint16)], axis=1)
    return fitted(table, table.measure(curator), synthetic, n_patients=n), synthetic


def test_histories_follow_the_chain_of_the_records_and_keep_their_bounds():
    n = 3_000
    domain, events = chained(n, 0)
    codes = patient_codes(n)
    table = EventTable(events=domain, patients=PATIENTS, start=2, mu=MU)
    hidden = hidden_codes(domain, events, n_patients=n)
    model, synthetic = modelled(table, events, codes, hidden)
    rng = np.random.default_rng(1)
    bounds = np.column_stack([np.full(n, 5.0), rng.integers(10, 120, n)])
    never = np.arange(n) % 40 == 0
    bounds[never, 1] = 4.0
    drawn = draw_histories(table, model, synthetic, bounds=bounds, rng=rng)
    after = hidden_codes(domain, drawn, n_patients=n)
    assert (np.diff(drawn.patient) >= 0).all()
    same = drawn.patient[1:] == drawn.patient[:-1]
    assert (np.diff(drawn.moment)[same] >= 0).all()
    assert (drawn.moment >= bounds[drawn.patient, 0]).all()
    assert (drawn.moment <= bounds[drawn.patient, 1]).all()
    # As many events as the patient's row says, of the kinds that it says.
    np.testing.assert_array_equal(after[:, 0], np.where(never, 0, hidden[:, 0]))
    np.testing.assert_array_equal((after < LEVELS)[~never, 2:], (hidden < LEVELS)[~never, 2:])
    kind, value = np.divmod(drawn.codes[:, 0], 3)
    follows = np.diff(kind) % 3 == 1
    assert follows[same].mean() > 0.9
    agree = np.corrcoef(value[1:][same], value[:-1][same])[0, 1]
    real = events.patient[1:] == events.patient[:-1]
    value = events.codes[:, 0] % 3
    expected = np.corrcoef(value[1:][real], value[:-1][real])[0, 1]
    assert agree == pytest.approx(expected, abs=0.12)


def test_hidden_codes_that_no_history_has_give_histories(table):
    domain, n = table.events, 400
    rng, codes = np.random.default_rng(0), patient_codes(n)
    hidden = np.stack([rng.integers(one.n_codes, size=n) for one in domain.hidden], axis=1)
    events = first_events(domain, *made_up(domain, n, 4))
    model, synthetic = modelled(table, events, codes, hidden)
    drawn = draw_histories(table, model, synthetic, rng=rng)
    same_day = (np.diff(drawn.patient) == 0) & (np.diff(drawn.moment) == 0)
    assert (np.diff(domain.kind_of[drawn.codes[:, 0]])[same_day] >= 0).all()
    after = hidden_codes(domain, drawn, n_patients=n)
    np.testing.assert_array_equal(after[:, 0], hidden[:, 0])
    assert ((after[:, 1] < domain.no_event[1]) == (after[:, 0] > 0)).all()
    assert ((after[:, 2:] < domain.no_event[2:]).any(axis=1) == (after[:, 0] > 0)).all()


def test_a_table_in_which_nobody_has_an_event_makes_none(table):
    nothing = first_events(table.events, *made_up(table.events, 20, 0, most=0))
    hidden = hidden_codes(table.events, nothing, n_patients=20)
    model, synthetic = modelled(table, nothing, patient_codes(20), hidden)
    drawn = draw_histories(table, model, synthetic, rng=np.random.default_rng(0))
    assert len(drawn.patient) == 0
    np.testing.assert_array_equal(hidden_codes(table.events, drawn, n_patients=20), hidden)


def test_a_kind_that_never_comes_again_and_a_column_that_repeats_do_so_when_drawn():
    n, rng = 4_000, np.random.default_rng(0)
    once = EventDomain(n_values=(1,) * 4, gaps=(0, 5), offsets=(0, 50, 100), most=4)
    m = rng.integers(0, 4, n)
    patient = np.repeat(np.arange(n), m)
    t = np.arange(len(patient)) - np.repeat(np.cumsum(m) - m, m)
    kind = np.argsort(rng.random((n, 4)), axis=1)[patient, t]
    same = rng.integers(3, size=n)[patient]
    for domain, own in (
        (once, kind[:, None]),
        (replace(once, n_values=(1,), others=(CodedColumn(3),)), np.stack([0 * t, same], axis=1)),
    ):
        events = Events(patient, 10.0 * t, own)
        table = EventTable(events=domain, patients=PATIENTS, start=2, mu=MU)
        hidden = hidden_codes(domain, events, n_patients=n)
        # A patient's row names one kind alone: another has to come where that may not come again.
        hidden[:, 2:] |= np.cumsum(hidden[:, 2:] == 0, axis=1).astype(np.uint16) != 1
        model, synthetic = modelled(table, events, patient_codes(n), hidden)
        drawn = draw_histories(table, model, synthetic, rng=rng)
        pairs = np.unique(np.stack([drawn.patient, drawn.codes[:, 0]]), axis=1).shape[1]
        if domain is once:
            assert pairs > 0.97 * len(drawn.patient)
        else:
            later = drawn.rank > 0
            column = drawn.codes[:, 1]
            assert (column == np.roll(column, 1))[later].mean() > 0.9


def test_a_battery_of_tests_is_drawn_in_its_order_and_ends_where_it_ends():
    # Ten events of each patient, in a bin of 8 to 13: five kinds in their order, on two days.
    n, kinds = 2_000, 5
    domain = EventDomain(n_values=(1,) * kinds, gaps=(0, 1, 8), offsets=(0, 50, 100), most=40)
    patient, t = np.repeat(np.arange(n), 2 * kinds), np.tile(np.arange(2 * kinds), n)
    events = Events(patient, 4.0 * (t // kinds), (t % kinds)[:, None])
    table = EventTable(events=domain, patients=PATIENTS, start=2, mu=MU)
    hidden = hidden_codes(domain, events, n_patients=n)
    model, synthetic = modelled(table, events, patient_codes(n), hidden)
    drawn = draw_histories(table, model, synthetic, rng=np.random.default_rng(0))
    number = np.bincount(drawn.patient, minlength=n)
    assert 8 <= number.min() <= number.max() <= 13
    assert (number == 2 * kinds).mean() > 0.6
    ordered = first_events(domain, drawn, np.zeros(len(drawn.patient), dtype=np.uint64))
    np.testing.assert_array_equal(ordered.codes, drawn.codes)


def test_a_table_of_more_events_or_codes_than_can_be_kept_is_refused():
    for wrong in ({"most": 1_001}, {"most": 0}, {"n_values": (4,) * 101}):
        with pytest.raises(ConfigurationError, match="expected 1 to"):
            replace(DOMAINS["values"], **wrong)


def release_of(*domains, shares):
    tables = {str(place): domain for place, domain in enumerate(domains)}
    return EventRelease(patients=PATIENTS, tables=tables, shares=shares)


def test_tables_share_what_is_not_declared():
    release = release_of(DOMAINS["values"], DOMAINS["one kind"], shares=[0.4, None])
    assert [one.mu**2 for one in release.tables_at(MU).values()] == pytest.approx([0.4, 0.3])
    parts = [sum(one.mu**2 for one in release.plan(mu=MU).statistics), MU**2]
    assert parts[0] == pytest.approx(parts[1], rel=1e-6)


def test_a_label_of_events_has_the_draws_of_a_table_and_follows_the_columns_of_an_event():
    n, rng, domain = 1_500, np.random.default_rng(0), DOMAINS["one kind"]
    events, ties = made_up(domain, n, 7)
    chance = np.array([0.1, 0.5, 0.9])[events.codes[:, 2]]
    events.codes[:, 1] = rng.random(len(ties)) < chance
    events, codes = first_events(domain, events, ties), patient_codes(n)
    release, executor, sealed = release_of(domain, shares=[None]), NotingExecutor(), {}
    table = release.tables_at(MU)["0"]
    hidden = hidden_codes(domain, events, n_patients=n)
    people = EncodedRows(
        codes=np.concatenate([codes, hidden], axis=1), label=codes[:, 1], weight=np.ones(n),
        fold=np.zeros(n, dtype=np.uint8),
    )  # fmt: skip
    rows = table.records(events, codes)
    curator = Curator(
        plan=release.plan(mu=MU), shards=[people], noise_source=NoNoise(), executor=executor,
        seal=sealed.__setitem__, beside={"0": [rows]},
    )  # fmt: skip
    found = measure(release, curator)
    assert curator.event == curator.plan.event
    assert [*sealed] == [one.name for one in curator.plan.statistics]
    own = [name for name in sealed if name.startswith("0.transitions.")]
    assert own == [f"0.transitions.{one.name}" for one in table.label_plan.statistics]
    plain = labelled_rows(rows, columns=table.labelled[0])
    assert plain.codes.shape[1] == PATIENTS.n_columns + 3
    np.testing.assert_array_equal(plain.label, events.codes[:, 1])
    for name, (contribution, public) in zip(own, executor.asked[-len(own) :], strict=True):
        parts = [plain.only(events.patient == one) for one in range(100)]
        moved = [norm_of(contribution(part, **public)) for part in parts]
        assert max(moved) <= curator.plan[name].l2_sensitivity
    made = release.of_patients.sample(found, n_rows=n, rng=rng)
    bounds = {"0": np.tile([-np.inf, np.inf], (n, 1))}
    drawn = release.histories(found, made, bounds, rng)[0]["0"].codes
    means = [drawn[drawn[:, 2] == one, 1].mean() for one in range(3)]
    assert means == pytest.approx([0.1, 0.5, 0.9], abs=0.12)


def test_many_kinds_share_a_level_and_leave_the_large_table_out():
    domain = replace(DOMAINS["kinds alone"], n_values=(2,) * 200)
    wide = release_of(domain, DOMAINS["one kind"], shares=[None, None]).of_patients.domain
    assert wide.n_columns == PATIENTS.n_columns + (2 + 12) + (2 + 1)
    table = EventTable(events=domain, patients=PATIENTS, start=2, mu=0.1)
    assert not table.choice.used[table.at["before_0"], table.at["event_0"]]
    assert table.choice.used[table.at["kind_before"], table.at["kind"]]
