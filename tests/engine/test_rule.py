"""The rule engine: where rules apply, what they report, and what the debug switch finds."""

import numpy as np
import pytest

import tvm_passes
from tests.helpers import apply, assert_no_second_change, module, ops, run
from tvm_passes.engine import LEGAL, NO_MATCH, Pass, PassReport, Refusal, Rule, RulePass

import tvm
from tvm import relay
from tvm.relay.dataflow_pattern import is_constant, is_op, wildcard


class DropDoubleRelu(Rule):
    inner = is_op("nn.relu")(wildcard())
    pattern = is_op("nn.relu")(inner)

    def rewrite(self, match, plan):
        return match.inner


class SimplifyRelu(RulePass):
    """Drop the second of two relus."""

    rules = (DropDoubleRelu,)


class DoubleByAddition(Rule):
    data, factor = wildcard(), is_constant()
    pattern = is_op("multiply")(data, factor)

    def plan(self, match):
        return LEGAL if np.all(match.factor.data.numpy() == 2) else Refusal("the factor is not 2")

    def rewrite(self, match, plan):
        return relay.add(match.data, match.data)


class AddForDoubling(RulePass):
    """Add instead of multiplying by 2."""

    rules = (DoubleByAddition,)


def relus(x, count):
    for _ in range(count):
        x = relay.nn.relu(x)
    return x


def variable(name="x"):
    return relay.var(name, shape=(2, 3))


def test_a_chain_goes_in_one_application():
    x = variable()
    after, report = apply(SimplifyRelu(), module(x, relus(x, 5)))
    assert ops(after) == ["nn.relu"]
    assert len(report.passes[0].rewrites) == 4
    assert_no_second_change(SimplifyRelu(), after)


def test_a_deep_graph_does_not_overflow_the_stack():
    x = variable()
    after, _ = apply(SimplifyRelu(), module(x, relus(x, 3000)))
    assert ops(after) == ["nn.relu"]


def test_inside_branches_nested_functions_and_other_functions():
    x, y, condition = variable(), variable("y"), relay.var("condition", shape=(), dtype="bool")
    nested = relay.Function([y], relus(y, 2))
    branches = relay.If(condition, relus(x, 2), relay.Call(nested, [relus(x, 3)]))
    mod = module(x, condition, branches)
    z = variable("z")
    mod["helper"] = relay.Function([z], relus(z, 2))
    after, _ = apply(SimplifyRelu(), mod)
    assert ops(after) == ["nn.relu"] * 3
    assert ops(after, "helper") == ["nn.relu"]


def test_inside_let():
    x, bound = variable(), relay.var("bound")
    mod = module(x, relay.Let(bound, relus(x, 2), relay.nn.relu(bound)))
    after, _ = apply(SimplifyRelu(), mod)
    assert ops(after) == ["nn.relu", "nn.relu"]


def test_in_a_sequential_and_without_types():
    x = variable()
    mod = module(x, relus(x, 2))
    simplify = SimplifyRelu()
    after = tvm.transform.Sequential([simplify, relay.transform.FoldConstant()])(mod)
    assert ops(after) == ["nn.relu"]
    assert len(simplify.report.rewrites) == 1


def test_functions_of_another_backend_are_left_alone():
    x = variable()
    mod = module(x, relus(x, 2))
    mod["main"] = mod["main"].with_attr("Compiler", "someone")
    assert apply(SimplifyRelu(), mod)[0].same_as(mod)


def test_a_shared_replacement_is_computed_once():
    x = variable()
    shared = relay.nn.relu(relay.exp(relay.nn.relu(relay.nn.relu(x))))
    mod = module(x, relay.Tuple([relay.nn.relu(shared), relay.tanh(shared)]))
    after, _ = apply(SimplifyRelu(), mod)
    assert ops(after).count("exp") == 1


def test_attributes_of_function_and_module_stay():
    x = variable()
    mod = module(x, relus(x, 2)).with_attr("kept", tvm.runtime.String("yes"))
    mod["main"] = mod["main"].with_attr("input_names", ["x"])
    after, _ = apply(SimplifyRelu(), mod)
    assert list(after["main"].attrs["input_names"]) == ["x"] and after.attrs["kept"] == "yes"


def test_a_refusal_keeps_the_graph_and_says_why_and_where():
    x = variable()
    span = relay.Span(relay.SourceName("aten::mul_7"), 0, 0, 0, 0)
    mod = module(x, relay.Call(relay.op.get("multiply"), [x, relay.const(3.0)], None, None, span))
    after, report = apply(AddForDoubling(), mod)
    assert after.same_as(mod)
    (refusal,) = report.passes[0].refusals
    assert (refusal.rule, refusal.location) == ("DoubleByAddition", "aten::mul_7")
    assert refusal.reason == "the factor is not 2"
    printed = str(report)
    assert "aten::mul_7: the factor is not 2" in printed and "AddForDoubling" in printed


def test_commutative_patterns_match_either_way():
    x = variable()
    after, _ = apply(AddForDoubling(), module(x, relay.multiply(relay.const(2.0), x)))
    assert ops(after) == ["add"]
    data = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(run(after, data)[0], 2 * data)


def test_matches_are_counted_by_rule():
    x = variable()
    both = relay.multiply(relay.multiply(x, relay.const(2.0)), relay.const(3.0))
    _, report = apply(AddForDoubling(), module(x, both))
    (counted,) = report.passes
    assert (len(counted.matches), len(counted.rewrites), len(counted.refusals)) == (2, 1, 1)


def test_recording_nests():
    x = variable()
    with tvm_passes.recording() as outer:
        SimplifyRelu()(module(x, relus(x, 2)))
        with tvm_passes.recording() as inner:
            SimplifyRelu()(module(x, relus(x, 2)))
    assert (len(outer.passes), len(inner.passes)) == (2, 1)


def test_an_unknown_name_in_a_match_is_an_error():
    class Misspelled(DropDoubleRelu):
        def rewrite(self, match, plan):
            return match.innner

    class Broken(RulePass):
        rules = (Misspelled,)

    x = variable()
    with pytest.raises(AttributeError, match="no pattern named 'innner'"):
        Broken()(module(x, relus(x, 2)))


def broken_pass(replacement):
    class Breaks(Rule):
        pattern = is_op("nn.relu")(wildcard())

        def rewrite(self, match, plan):
            return replacement(match.root)

    return type("Broken", (RulePass,), {"rules": (Breaks,)})()


def test_the_debug_switch_blames_the_pass_that_changes_a_type():
    x = variable()
    mod = module(x, relay.nn.relu(x))
    with pytest.raises(tvm_passes.PassBrokeModule, match="Broken changed the type of @main"):
        apply(broken_pass(lambda root: relay.cast(relay.exp(root.args[0]), "float16")), mod)


def test_a_replacement_with_a_loose_variable_is_an_error():
    x, loose = variable(), variable("loose")
    with pytest.raises(tvm.TVMError, match="contains free variables"):
        apply(broken_pass(lambda root: relay.exp(loose)), module(x, relay.nn.relu(x)))


def test_a_replacement_that_contains_what_it_replaces_is_an_error():
    x = variable()
    with pytest.raises(ValueError, match="contains that node"):
        apply(broken_pass(relay.exp), module(x, relay.nn.relu(x)))


def test_a_rule_that_never_ends_is_an_error():
    x = variable()
    with pytest.raises(RuntimeError, match="still finds something to rewrite"):
        apply(broken_pass(lambda root: relay.nn.relu(relay.exp(root.args[0]))), module(x, relay.nn.relu(x)))


def with_rule(**methods):
    """A pass with one rule, of relu of relu, that has these methods."""
    rule = type("OfRelus", (Rule,), {"pattern": is_op("nn.relu")(is_op("nn.relu")(wildcard())), **methods})
    return type("Relus", (RulePass,), {"rules": (rule,)})()


def test_a_plan_goes_to_the_rewrite():
    x = variable()
    relus_pass = with_rule(
        plan=lambda self, match: match.root.args[0].args[0], rewrite=lambda self, match, plan: relay.exp(plan)
    )
    after, _ = apply(relus_pass, module(x, relus(x, 2)))
    assert ops(after) == ["exp"]


@pytest.mark.parametrize("plan", [0, [], False])
def test_a_plan_may_be_falsy(plan):
    x = variable()
    plans = with_rule(
        plan=lambda self, match: plan, rewrite=lambda self, match, plan: match.root.args[0].args[0]
    )
    after, _ = apply(plans, module(x, relus(x, 2)))
    assert ops(after) == []


def test_a_plan_that_forgets_to_answer_is_a_refusal():
    x = variable()
    mod = module(x, relus(x, 2))
    after, report = apply(with_rule(plan=lambda self, match: None), mod)
    assert after.same_as(mod)
    assert [outcome.reason for outcome in report.passes[0].refusals] == [
        "OfRelus.plan returned neither a plan nor a refusal"
    ]


def test_no_match_is_not_reported():
    x = variable()
    _, report = apply(with_rule(plan=lambda self, match: NO_MATCH), module(x, relus(x, 2)))
    assert not report.passes[0].matches


def test_what_two_runs_of_a_pass_refuse_is_reported_once():
    refuses = with_rule(plan=lambda self, match: Refusal("no"))
    x = variable()
    _, report = apply(tvm.transform.Sequential([refuses, SimplifyRelu(), refuses]), module(x, relus(x, 2)))
    assert [len(each.refusals) for each in report.passes] == [1, 0, 0]
    _, report = apply(tvm.transform.Sequential([refuses, refuses]), module(x, relus(x, 2)))
    assert [len(each.refusals) for each in report.passes] == [0, 1]


def test_a_rewrite_that_forgets_to_answer_is_an_error():
    x = variable()
    with pytest.raises(TypeError, match=r"OfRelus\.rewrite returned None, which is not an expression"):
        apply(with_rule(rewrite=lambda self, match, plan: None), module(x, relus(x, 2)))


def test_rules_of_the_release_before_still_work():
    class Old(Rule):
        data, factor = wildcard(), is_constant()
        pattern = is_op("multiply")(data, factor)

        def check(self, match):
            if not np.all(match.factor.data.numpy() == 2):
                return "the factor is not 2"

        def rewrite(self, match):
            return relay.add(match.data, match.data)

    class OfBefore(RulePass):
        rules = (Old,)

    with pytest.warns(DeprecationWarning, match="Old: a rule's `check` is now `plan`"):
        of_before = OfBefore()
    x = variable()
    products = relay.Tuple([x * relay.const(2.0), x * relay.const(3.0)])
    after, report = apply(of_before, module(x, products))
    assert ops(after) == ["add", "multiply"]
    assert [(outcome.rule, outcome.reason) for outcome in report.passes[0].refusals] == [
        ("Old", "the factor is not 2")
    ]


def test_a_pass_without_rules_reports_and_is_verified():
    def transform(mod, report):
        report.rewrote(report.name, "here")
        x = variable()
        return module(x, relay.cast(x, "float16"))

    class Halved(Pass):
        def __init__(self):
            super().__init__(transform)

    x = variable()
    with tvm_passes.recording() as report:
        Halved()(module(x, relay.exp(x)))
    assert [(each.name, [outcome.location for outcome in each.rewrites]) for each in report.passes] == [
        ("Halved", ["here"])
    ]
    tvm_passes.verify_each_pass()
    try:
        with pytest.raises(tvm_passes.PassBrokeModule, match="Halved changed the type of @main"):
            Halved()(module(x, relay.exp(x)))
    finally:
        tvm_passes.verify_each_pass(False)


def test_places_that_are_not_known_are_counted():
    """A table for a network whose batch norms were folded had a line of question marks."""
    report = PassReport("Fold", ["Rule"])
    for place in ("", "conv1", ""):
        report.refused("Rule", place, "the reason")
    assert "conv1, 2 times ?: the reason" in str(report)
