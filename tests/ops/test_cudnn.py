"""Calls of cuDNN, and which of its plans they take, with an imitation in its place."""

from types import SimpleNamespace

from tests.ops.convolutions import Case, options
from topi_ext.conv2d_nhwc import cudnn
from topi_ext.cudnn import plans as cudnn_plans
from topi_ext.cudnn import session as cudnn_session

import tvm

PROBLEM = Case((9, 18), 256, 256, bias=None, **options()).problem()

# --- the call


class FakeCudnn:
    """Counts what a call asks of the library."""

    def __init__(self):
        self.calls = []

    def set_stream(self, _handle, stream):
        self.calls.append(("set_stream", stream))

    def execute(self, addresses, workspace, _handle):
        self.calls.append(("execute", addresses, workspace))


def test_a_call_does_no_more_than_it_must(monkeypatch):
    """One plan a problem, the stream told when it changes, pointers by number, those of numbers last."""
    fake, built, streams = FakeCudnn(), [], iter((0, 7, 7))
    session = cudnn_session._Session.__new__(cudnn_session._Session)
    vars(session).update(cudnn=fake, handle=None, stream=0, plans={}, current_stream=lambda: next(streams))
    monkeypatch.setattr(
        session, "_build", lambda _operator, text, _: built.append(text) or cudnn_session._Plan(fake, 5, [7])
    )
    for _ in range(3):
        session.run(cudnn.OPERATOR, PROBLEM.to_json(), [100, 200, 300])
    execute = ("execute", {1: 100, 2: 200, 3: 300, 4: 7}, 5)
    assert built == [PROBLEM.to_json()]
    assert fake.calls == [execute, ("set_stream", 7), execute, execute]


def test_plans_share_a_workspace_that_stays():
    session = cudnn_session._Session.__new__(cudnn_session._Session)
    vars(session).update(device=tvm.cpu(), workspaces=[])
    first, smaller, larger = (session._workspace(size) for size in (100, 50, 200))
    assert first == smaller != larger and len(session.workspaces) == 2


def test_a_call_is_timed_on_its_stream():
    """As TVM's runtime takes it, which would read a plain int as one of 32 bits."""
    stream, waits, runs = 0x7F0000000010, [], []
    session = cudnn_session._Session.__new__(cudnn_session._Session)
    vars(session).update(device=SimpleNamespace(sync=waits.append), current_stream=lambda: stream)
    assert 0 < session._seconds(lambda: runs.append(len(waits))) < 1
    assert {wait.value for wait in waits} == {stream}
    assert runs == list(range(1 + cudnn_session.TIMED_CALLS))  # each after the wait for the one before


def test_what_plans_that_were_only_tried_had_is_given_back(monkeypatch):
    session = cudnn_session._Session.__new__(cudnn_session._Session)
    vars(session).update(device=tvm.cpu(), workspaces=[], numbers=[], cudnn=SimpleNamespace(**LIBRARY))
    vars(session).update(handle=None, stream=0, current_stream=lambda: 0)
    taken = SimpleNamespace(get_workspace_size=lambda: 100, execute=lambda *_: None)

    def graph_with_plan(_cudnn, _handle, _key, _build, run, _seconds):
        run(SimpleNamespace(get_workspace_size=lambda: 1000, execute=lambda *_: None))
        return taken

    monkeypatch.setattr(cudnn_plans, "graph_with_plan", graph_with_plan)
    monkeypatch.setattr(cudnn_session, "_key", lambda *_: "a problem")
    used = cudnn_session.workspaces_used()
    plan = session._build(cudnn.OPERATOR, PROBLEM.to_json(), [100, 200, 300])
    assert plan.graph is taken and [each.shape for each in session.workspaces] == [(100,)]
    assert cudnn_session.workspaces_used() == used


# --- the plan


class NotSupported(Exception):
    """As cuDNN's own."""


class FakeGraph:
    """Has plans by name: the size of a workspace, None if it cannot be built, and what a call takes."""

    def __init__(self, plans):
        self.plans, self.names, self.selected, self.built = plans, list(plans), None, []

    def create_execution_plans(self, modes):
        self.modes = modes

    def get_execution_plan_count(self):
        return len(self.names)

    def get_plan_name_at_index(self, index):
        return self.names[index]

    def build_plan_at_index(self, index):
        name = self.names[index]
        self.built.append(name)
        if self.plans[name][0] is None:
            raise NotSupported
        self.selected = name

    def get_workspace_size(self):
        return self.plans[self.selected][0]

    def serialize(self):
        return list(self.selected.encode())

    def deserialize(self, _handle, kept):
        self.selected = kept.decode()
        if self.selected not in self.plans:
            raise RuntimeError("made by another version")


LIBRARY = {
    "heur_mode": SimpleNamespace(A="A", B="B", FALLBACK="F"),
    "cudnnGraphNotSupportedError": NotSupported,
    "backend_version_string": lambda: "9.9",
}
PLANS = {"refused": (None, 0), "large": (64, 4), "first": (0, 5), "second": (0, 3), "last": (0, 4)}


def plan_of(plans, key="a problem", build=FakeGraph):
    """The plan that is taken, and all that are built for it."""
    library = SimpleNamespace(**LIBRARY, pygraph=lambda **_: FakeGraph(plans))
    graph = cudnn_plans.graph_with_plan(
        library, None, key, lambda: build(plans), lambda graph: graph.selected, times_of(plans)
    )
    return graph and (graph.selected, graph.built)


def times_of(plans):
    """What a call takes of the plan that it runs."""

    def measure(run):
        _, time = plans[run()]
        if time is None:
            raise RuntimeError("there is no room for the workspace")
        return time

    return measure


def test_the_first_plan_without_a_workspace(own_cache):
    assert plan_of(PLANS) == ("first", ["refused", "large", "first", "first", "large", "first"])
    assert plan_of(PLANS) == ("first", [])  # kept with its kernel
    assert plan_of(PLANS, "another")[1]


def test_a_workspace_where_that_is_much_faster(own_cache):
    plans = {**PLANS, "large": (64, 3)}
    assert plan_of(plans)[0] == "large"
    plans = {**PLANS, "large": (64, 1)}
    with cudnn_plans.timed_by(times_of(plans)):
        assert plan_of(plans)[0] == "large"


def test_a_plan_that_fails_is_no_faster_than_others(own_cache):
    plans = {**PLANS, "large": (64, None)}
    assert plan_of(plans)[0] == "first"
    with cudnn_plans.timed_by(times_of(plans)):
        assert plan_of(plans)[0] == "second"


def test_a_workspace_where_all_plans_have_one(own_cache):
    plans = {"refused": (None, 0), "large": (64, 1), "larger": (128, 1)}
    assert plan_of(plans) == ("large", [*plans, "large"])  # built again, which selects it


def test_no_plan(own_cache):
    assert plan_of({"refused": (None, 0)}) is None


def test_the_fastest_is_kept(own_cache):
    assert plan_of(PLANS)[0] == "first"
    timed = []

    def measure(run):
        timed.append(run())
        return PLANS[timed[-1]][1]

    with cudnn_plans.timed_by(measure):
        assert plan_of(PLANS)[0] == "second"
        assert timed == ["first", "second", "last", "large"]
        assert plan_of(PLANS) == ("second", []) and len(timed) == 4
    assert plan_of(PLANS) == ("second", [])
    fewer = {name: plan for name, plan in PLANS.items() if name != "second"}
    assert plan_of(fewer)[0] == "first"  # as cuDNN cannot load what was kept


def test_the_fastest_stays_that_another_process_finds_meanwhile(own_cache):
    def built_slowly(plans):
        with cudnn_plans.timed_by(lambda run: PLANS[run()][1]):
            plan_of(plans)
        return FakeGraph(plans)

    assert plan_of(PLANS, build=built_slowly)[0] == "first"
    assert plan_of(PLANS) == ("second", [])


def test_kernels_in_python_are_passed_over(own_cache):
    engine_ids = SimpleNamespace(is_python_engine=lambda name: name == "first")
    library = SimpleNamespace(**LIBRARY, engines=SimpleNamespace(engine_ids=engine_ids))
    graph = FakeGraph(PLANS)
    graph.plans = EngineOfPlans(PLANS)
    timed = [lambda graph: graph.selected, lambda run: PLANS[run()][1]]
    assert cudnn_plans.graph_with_plan(library, None, "a problem", lambda: graph, *timed) is graph
    assert graph.selected == "second"


class EngineOfPlans(dict):
    """Plans by name, and by index as a frontend lists them."""

    def __getitem__(self, key):
        if isinstance(key, int):
            return SimpleNamespace(engine_id=list(self)[key])
        return super().__getitem__(key)


def test_without_a_cache_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("TVM_PASSES_CACHE", "0")
    with cudnn_plans.timed_by(lambda run: PLANS[run()][1]):
        assert plan_of(PLANS)[0] == "second"
    assert plan_of(PLANS)[0] == "first"
