"""What all integrations share: fingerprints, and replacing at once and back at once."""

import functools
import types
import warnings

import integrations_known as known
import pytest

from gyrograd.integrations._fingerprint import fingerprint, with_helpers
from gyrograd.integrations._switch import Finding, Plan, Report, Switch, like, stock, unreplaced

# ---- fingerprints


def test_fingerprint_is_of_what_a_function_computes():
    assert fingerprint(known.turn) == "d82d3aef82c16b9e"  # of every Python version
    assert fingerprint(known.decorated) == fingerprint(known.turn)
    assert fingerprint(known.wrapped) == fingerprint(known.turn)


@pytest.mark.parametrize("other", [known.other_body, known.other_default, known.other_name, known.rotate_half])
def test_other_code_has_another_fingerprint(other):
    assert fingerprint(other) not in (None, fingerprint(known.turn))


def test_fingerprint_of_several_is_of_each_in_order():
    both = fingerprint(known.turn, known.rotate_half)
    assert len({both, fingerprint(known.rotate_half, known.turn), fingerprint(known.turn)}) == 3


def foreign_wrapper(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        return None

    return wrapped


def made_from_text():
    names = {}
    exec("def made(x):\n    return x", names)
    return names["made"]


@pytest.mark.parametrize(
    "thing", [len, lambda x: x, foreign_wrapper(known.turn), made_from_text(), functools.partial(known.turn), Switch]
)
def test_what_can_not_be_read_has_no_fingerprint(thing):
    assert fingerprint(thing) is None
    assert fingerprint(known.turn, thing) is None


def test_nothing_has_no_fingerprint():
    assert fingerprint() is None


def test_helpers_are_those_that_the_code_calls():
    assert with_helpers(known.turn) == (known.turn, known.rotate_half)
    assert with_helpers(known.rotate_half) == (known.rotate_half,)


def test_a_helper_that_was_replaced_counts(monkeypatch):
    """A function of the same source that calls another helper is not known."""
    before = fingerprint(*with_helpers(known.turn))

    def rotate_half(x):
        return (x[1], -x[0])

    monkeypatch.setattr(known, "rotate_half", known.other_body)
    assert fingerprint(*with_helpers(known.turn)) not in (None, before)
    monkeypatch.setattr(known, "rotate_half", rotate_half)
    assert fingerprint(*with_helpers(known.turn)) != before


# ---- switches


class Owner:
    def method(self):
        return "stock"

    @staticmethod
    def static():
        return "stock"


@pytest.fixture
def module():
    made = types.ModuleType("package.models.one")
    made.first = lambda: "first"
    made.second = lambda: "second"
    return made


def replaced(found):
    return lambda *_: "replaced"


def plan_of(module, *names):
    plan = Plan("package 1.0")
    for name in names:
        plan.replace(module, name, replaced, "rotary", "half")
    return plan


def test_a_switch_replaces_and_undo_restores_the_same_objects(module):
    before = {**vars(module)}
    switch = plan_of(module, "first", "second").switch()
    assert switch.is_active
    assert module.first() == module.second() == "replaced"
    assert stock(module, "first") is before["first"]
    assert unreplaced(module.first) is before["first"]
    switch.undo()
    assert not switch.is_active
    assert vars(module) == before
    assert all(vars(module)[name] is thing for name, thing in before.items())
    switch.undo()
    assert module.first is before["first"]


def test_a_switch_is_a_context(module):
    before = module.first
    with pytest.raises(KeyError), plan_of(module, "first").switch() as switch:
        assert module.first is not before
        raise KeyError
    assert module.first is before
    assert not switch.is_active


def test_attributes_of_classes():
    before = {**vars(Owner)}
    plan = Plan("package 1.0")
    plan.replace(Owner, "method", replaced, "rotary", "half")
    plan.replace(Owner, "static", lambda found: staticmethod(lambda: "replaced"), "rotary", "half")
    with plan.switch() as switch:
        assert Owner().method() == Owner.static() == "replaced"
        assert switch.report.findings[0].place == f"{__name__}.Owner.method"
    assert vars(Owner)["method"] is before["method"]
    assert vars(Owner)["static"] is before["static"]


@pytest.mark.parametrize("fault", ["make", "absent"])
def test_nothing_is_half_replaced(module, fault):
    before = {**vars(module)}
    plan = plan_of(module, "first")
    if fault == "make":
        plan.replace(module, "second", lambda found: 1 / 0, "rotary", "half")
    else:
        plan.replace(module, "third", replaced, "rotary", "half")
    with pytest.raises(ZeroDivisionError if fault == "make" else AttributeError):
        plan.switch()
    assert vars(module) == before
    with plan_of(module, "first").switch():
        assert module.first() == "replaced"
    assert module.first is before["first"]


class Strict(type):
    """Classes that refuse a name once."""

    refused = "none"

    def __setattr__(cls, name, value):
        if name == Strict.refused:
            raise TypeError(name)
        super().__setattr__(name, value)


class Guarded(metaclass=Strict):
    def method(self):
        return "stock"


@pytest.mark.parametrize("at", ["switch", "undo"])
def test_a_fault_half_way_is_taken_back(module, monkeypatch, at):
    plan = plan_of(module, "first")
    plan.replace(Guarded, "method", replaced, "rotary", "half")
    before = module.first
    if at == "switch":
        monkeypatch.setattr(Strict, "refused", "method")
        with pytest.raises(TypeError, match="method"):
            plan.switch()
        assert module.first is before
        return
    switch = plan.switch()
    monkeypatch.setattr(Strict, "refused", "method")
    with pytest.raises(TypeError, match="method"):
        switch.undo()
    assert switch.is_active
    assert module.first() == Guarded().method() == "replaced"
    monkeypatch.setattr(Strict, "refused", "none")
    switch.undo()
    assert module.first is before
    assert Guarded().method() == "stock"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_last_of_two_switches_restores(module, order):
    before = module.first
    switches = [plan_of(module, "first").switch(), plan_of(module, "first", "second").switch()]
    standing = module.first
    switches[order[0]].undo()
    switches[order[0]].undo()
    assert module.first is standing
    assert (module.second() == "replaced") == (order[0] == 0)
    switches[order[1]].undo()
    assert module.first is before


def test_a_place_that_is_named_twice_is_replaced_once(module):
    before = module.first
    with plan_of(module, "first", "first").switch():
        assert module.first() == "replaced"
    assert module.first is before


def test_undo_refuses_where_something_else_stands(module):
    before = {**vars(module)}
    switch = plan_of(module, "first", "second").switch()
    ours = module.second
    module.second = lambda: "somebody else's"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"package\.models\.one\.second is no longer gyrograd's"):
            switch.undo()
    assert module.first() == "replaced"
    with pytest.raises(RuntimeError, match=r"package\.models\.one\.second was switched to gyrograd before"):
        plan_of(module, "first", "second").switch()
    module.second = ours
    switch.undo()
    assert vars(module) == before


# ---- reports


def findings():
    return (
        Finding("package.a.first", "rotary", True, "half"),
        Finding("package.b.second", "QK-norm", False, "for a reason"),
        Finding("package.c.third", "rotary", True, "quarter"),
    )


def test_a_report_is_an_object_and_a_table():
    report = Report(findings())
    assert report.replaced == (findings()[0], findings()[2])
    assert report.left == findings()[1:2]
    lines = [line.split() for line in str(report).splitlines()]
    assert ["replaced", "rotary", "half", "package.a.first"] in lines
    assert ["left", "QK-norm", "for", "a", "reason", "package.b.second"] in lines
    assert "no rotary" in str(Report())


def test_a_switch_prints_its_report(module):
    with plan_of(module, "first").switch() as switch:
        assert str(switch) == str(switch.report)
        assert "package.models.one.first" in str(switch)


def test_one_warning_names_what_is_not_known(module):
    plan = plan_of(module, "first")
    plan.leave("package.a.other", "rotary", "not known", is_known=False)
    plan.leave("package.a.another", "rotary", "not known", is_known=False)
    plan.leave("package.a.known", "rotary", "for a reason")
    with pytest.warns(UserWarning) as caught, plan.switch():
        pass
    (warning,) = caught
    text = str(warning.message)
    assert "package 1.0" in text and "package.a.other, package.a.another" in text and "package.a.known" not in text


def test_a_warning_where_nothing_is_replaced():
    with pytest.warns(UserWarning, match=r"package 1\.0: nothing was replaced") as caught, Plan("package 1.0").switch():
        pass
    assert len(caught) == 1


def test_no_warning_where_all_is_known(module):
    plan = plan_of(module, "first")
    plan.leave("package.a.known", "rotary", "for a reason")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with plan.switch():
            pass


def test_like_keeps_what_tools_read():
    @like(known.turn)
    def other(*args):
        return args

    assert (other.__name__, other.__module__, other.__wrapped__) == ("turn", known.__name__, known.turn)
    assert fingerprint(other) is None
