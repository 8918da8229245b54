import json
from collections.abc import Mapping
from typing import Any

import pytest

from spheroid_jax.reports.delays.verdicts import judge, observations, verdicts

CHANCE = 5.545
RECIPES = {"nesterov": "name=nesterov learning_rate=0.7 momentum=0.9"}
Losses = Mapping[str, Mapping[Any, Any]]


def make(
    losses: Losses,
    name: str = "delay_sweep",
    x: str = "delay.tau",
    panel: str = "",
    value: Any = None,
    recipes: Mapping[str, str] = RECIPES,
) -> dict[str, Any]:
    """A summary; a number stands for three seeds that lie 0.01 apart."""
    return {
        "name": name,
        "chance": CHANCE,
        "x": x,
        "panel": panel,
        "methods": list(losses),
        "recipes": recipes,
        "rows": [
            row(m, at, f, x, panel, value)
            for m, ls in losses.items()
            for at, f in ls.items()
        ],
    }


def row(
    method: str, at: Any, final: Any, x: str, panel: str, value: Any
) -> dict[str, Any]:
    seeds = final if isinstance(final, list) else [final - 0.01, final, final + 0.01]
    settings = {x: at} | ({panel: value} if panel else {})
    return {"method": method, "settings": settings, "final": seeds}


def both(fixed: Losses, uniform: Losses, **more: Any) -> dict[str, Any]:
    one, two = (
        make(losses, panel="delay.kind", value=kind, **more)
        for kind, losses in (("fixed", fixed), ("uniform", uniform))
    )
    methods = list(dict.fromkeys(one["methods"] + two["methods"]))
    return one | {"rows": one["rows"] + two["rows"], "methods": methods}


def outcome(summary: Mapping[str, Any], claim: str) -> tuple[str, str]:
    (found,) = [j for j in judge(summary) if claim in j.claim]
    return found.outcome, found.because


FLAT = {0: 2.0, 8: 2.01, 16: 2.02}


# What is seen.


def test_who_ends_above_chance_and_where() -> None:
    nesterov = {0: 2.05, 1: 2.1, 2: 2.2, 4: 2.4, 8: 13.5, 16: 12.0}
    said = observations(make({"nesterov": nesterov, "cgad": FLAT, "adam": FLAT}))
    assert said[0] == (
        "Nesterov 0.7/0.9 ends above ln V = 5.545 at tau = 8, 16 and below it "
        "at tau = 0, 1, 2, 4."
    )
    assert said[1] == "CGAD and Age-blind Adam end below ln V = 5.545 at every tau."


def test_a_share_of_diverged_seeds_is_named() -> None:
    said = observations(make({"sgd": {0: 2.0, 8: [2.0, 9.0, None]}}))
    assert said[0] == (
        "SGD in 2 of 3 seeds above ln V = 5.545 at tau = 8 and below it at tau = 0; "
        "not finite at tau = 8."
    )


def test_the_course_of_cgad_is_told_with_its_sign() -> None:
    said = observations(make({"cgad": {16: 2.1, 0: 2.01}}))
    assert "CGAD ends at 2.010 at tau = 0 and 2.100 at tau = 16: +0.090." in said


def test_cgad_stands_against_age_blind_adam() -> None:
    adam = {0: 2.0, 8: [2.0, 2.1, 2.2], 16: 2.0}
    cgad = {0: 2.0, 8: [1.99, 2.1, 2.201], 16: 2.0}
    (said,) = [
        s for s in observations(make({"cgad": cgad, "adam": adam})) if "against" in s
    ]
    assert "largest difference -0.003 (standard error 0.004, 3 seeds: no diff" in said
    assert said.endswith("at tau = 8. Outside the noise at 0 of 3 places.")
    clear = make({"cgad": {0: 2.0, 8: 1.9}, "adam": {0: 2.0, 8: 2.0}})
    (said,) = [s for s in observations(clear) if "against" in s]
    assert "-0.100" in said
    assert "lower" in said
    assert said.endswith("Outside the noise at 1 of 2 places.")


def test_one_seed_makes_no_claim_on_differences() -> None:
    summary = make({"cgad": {0: [2.0], 8: [1.0]}, "adam": {0: [2.0], 8: [2.0]}})
    said = verdicts(summary)
    assert said[0].startswith("One seed")
    assert any("-1.000 (one seed can't tell) at tau = 8" in s for s in said)
    assert outcome(summary, "fixed ages")[0] == "unsure"
    assert outcome(summary, "CGAD loses")[0] == "unsure"


# Claims of the delay sweep.


@pytest.mark.parametrize(
    ("nesterov", "expected"),
    [
        ({0: 2.0, 4: 3.0, 8: 13.0, 16: 12.0}, "yes"),
        ({0: 2.0, 8: [None, None, None]}, "yes"),
        ({0: 2.0, 4: 13.0, 8: 3.0, 16: 4.0}, "no"),
        ({0: 2.0, 8: 3.0, 16: 12.0}, "part"),
        ({0: 2.0, 8: [3.0, 9.0, 9.0]}, "part"),
        ({0: 9.0, 8: 13.0}, "unsure"),
        ({0: 2.0, 4: 13.0}, "unsure"),
        ({}, "unsure"),
    ],
)
def test_nesterov_diverges(nesterov: dict[int, Any], expected: str) -> None:
    summary = make({"nesterov": nesterov, "adam": FLAT})
    assert outcome(summary, "Nesterov 0.7/0.9 diverges")[0] == expected


def test_only_the_published_recipe_stands_for_it() -> None:
    other = {"nesterov": "nesterov learning_rate=0.07 momentum=0.9"}
    summary = make({"nesterov": {0: 2.0, 8: 13.0}}, recipes=other)
    assert outcome(summary, "Nesterov 0.7/0.9 diverges")[0] == "unsure"
    named = make({"nesterov 0.7/0.9": {0: 2.0, 8: 13.0}}, recipes={})
    assert outcome(named, "Nesterov 0.7/0.9 diverges")[0] == "yes"


def test_delay_aware_methods_survive_or_not_and_adam_with_them() -> None:
    claim = "delay-aware"
    fine = make({"cgad": FLAT, "adam_decay": FLAT, "adam": FLAT})
    assert outcome(fine, claim) == (
        "yes",
        "These do: CGAD and Adam-Decay. Age-blind Adam does too: that takes no gate.",
    )
    hurt = make({"cgad": FLAT, "adam": {0: 2.0, 16: 7.0}})
    assert outcome(hurt, claim) == ("yes", "These do: CGAD. Age-blind Adam does not.")
    bad = {0: 2.0, 8: 2.0, 16: 7.0}
    text = "These don't: CGAD at tau = 16."
    assert outcome(make({"cgad": bad}), claim) == ("no", text)
    assert outcome(make({"cgad": bad, "adam_decay": FLAT}), claim) == ("part", text)
    assert outcome(make({"cgad": {0: 2.0, 4: 2.0}}), claim)[0] == "unsure"
    assert outcome(make({"adam": FLAT}), claim)[0] == "unsure"


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (2.03, "yes"),
        (1.7, "yes"),
        (2.1, "no"),
        ([None, None, None], "no"),
        ([2.0, 2.0, 9.0], "no"),
        ([2.0, 2.3, 1.9], "unsure"),
    ],
)
def test_cgad_is_flat_in_the_delay(late: Any, expected: str) -> None:
    summary = make({"cgad": {0: 2.0, 4: 2.01, 16: late}, "adam": FLAT})
    found, because = outcome(summary, "CGAD loses at most 0.05 nats")
    assert found == expected
    if late == 2.1:
        assert "at tau = 16, against tau = 0: +0.100" in because
        assert "Age-blind Adam there: +0.020" in because
    early = make({"cgad": {0: [2.0, None, 2.0], 16: 2.0}})
    assert outcome(early, "CGAD loses at most")[0] == "unsure"
    one = make({"cgad": {8: 2.0}})
    assert outcome(one, "CGAD loses at most")[0] == "unsure"


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (2.03, "yes"),
        (2.2, "no"),
        ([1.99, 2.0, None], "no"),
        ([1.8, 2.0, 2.2], "unsure"),
    ],
)
def test_one_age_makes_the_gate_vanish(decay: Any, expected: str) -> None:
    same = {0: 2.0, 8: 2.0}
    fixed = {"cgad": same, "adam": same, "adam_decay": {0: 2.0, 8: decay}}
    claim = "at fixed ages"
    assert outcome(make(fixed), claim)[0] == expected
    # Under uniform ages they may differ as they like.
    wild = {"cgad": same, "adam": {0: 2.0, 8: 3.0}}
    assert outcome(both(fixed, wild), claim)[0] == expected
    alone = make(wild, panel="delay.kind", value="uniform")
    assert outcome(alone, claim)[0] == "unsure"


@pytest.mark.parametrize(
    ("cgad", "expected"),
    [
        (1.9, "yes"),
        (2.0, "no"),
        (2.1, "no"),
        ([1.5, 2.0, 2.3], "unsure"),
        ([1.9, 2.0, None], "unsure"),
        ([None, None, None], "no"),
    ],
)
def test_the_gate_helps_where_ages_vary(cgad: Any, expected: str) -> None:
    adam = {0: 2.0, 8: 2.0}
    # Without delay there is no gate: the loss there has no say.
    uniform = {"cgad": {0: 3.0, 8: cgad}, "adam": adam}
    claim = "gate of CGAD lowers"
    assert outcome(both({"cgad": adam, "adam": adam}, uniform), claim)[0] == expected
    assert outcome(make(uniform), claim)[0] == "unsure"


# Claims of the other experiments.


def test_pa_cgad_is_lower_or_not_where_updates_are_dropped() -> None:
    def found(pa: Any) -> str:
        cells = {"pa_cgad": {0.0: 9.0, 0.3: pa}, "cgad": {0.0: 2.0, 0.3: 2.1}}
        summary = make(cells, name="partial_sync", x="sync.drop")
        return outcome(summary, "PA-CGAD ends lower")[0]

    assert found(2.0) == "yes"
    assert found(2.1) == "no"
    assert found(2.2) == "no"
    assert found([2.0]) == "unsure"
    # At any delay, as long as something is dropped.
    delays = {"pa_cgad": {0: 2.0, 8: 2.0}, "cgad": {0: 2.2, 8: 2.0}}
    summary = make(delays, "partial_sync", panel="sync.drop", value=0.3)
    assert "mean at tau = 0, 8: -0.100" in outcome(summary, "PA-CGAD ends lower")[1]
    summary = make(delays, "partial_sync", panel="sync.drop", value=0.0)
    assert outcome(summary, "PA-CGAD ends lower") == ("unsure", "Nothing was dropped.")
    missing = make({"cgad": {0.3: 2.0}}, name="partial_sync", x="sync.drop")
    assert outcome(missing, "PA-CGAD ends lower")[0] == "unsure"


def test_what_pa_cgad_owes_to_its_gate() -> None:
    def found(pa: float, delay: float, adam: float) -> list[str]:
        cells = {"pa_cgad": {0.3: pa}, "pa_delay": {0.3: delay}, "pa_adam": {0.3: adam}}
        summary = make(cells, name="partial_sync", x="sync.drop")
        claims = ("the age of a fragment", "the gate lowers the loss of fragments")
        return [outcome(summary, claim)[0] for claim in claims]

    assert found(2.0, 2.1, 2.2) == ["yes", "yes"]
    assert found(2.1, 2.1, 2.2) == ["no", "yes"]
    assert found(2.3, 2.4, 2.2) == ["yes", "no"]


def test_a_grid_of_rates_names_the_best_and_where_it_lies() -> None:
    cells = {"adam": {1e-3: 2.3, 3e-3: 2.1, 1e-2: 2.2}}
    summary = make(cells, name="outer_grid", x="outer.learning_rate")
    (best,) = [line for line in verdicts(summary) if "does best" in line]
    assert "learning_rate = 0.003 (2.100), inside the grid" in best
    assert judge(summary) == []
    summary = make(
        {"adam": {1e-3: 2.0, 3e-3: 2.1}}, "outer_grid", "outer.learning_rate"
    )
    assert any("an end of the grid" in line for line in verdicts(summary))


def test_the_gate_does_best_before_the_moments_or_after() -> None:
    pre, post, adam = {0: 2.0, 8: 2.1}, {0: 2.0, 8: 2.3}, {0: 2.0, 8: 2.2}

    def found(**cells: Any) -> list[tuple[str, str]]:
        fixed = {"cgad": adam, "cgad_post": adam, "adam": adam}
        summary = both(fixed, cells | {"adam": adam}, name="gate_ablation")
        return [(j.outcome, j.because) for j in judge(summary) if "before" in j.claim]

    (at_fixed, _), (at_uniform, because) = found(cgad=pre, cgad_post=post)
    assert (at_fixed, at_uniform) == ("no", "yes")
    assert because.startswith("Uniform ages: CGAD minus CGAD, gate after at tau = 8")
    assert because.endswith(
        "Means over the delays: CGAD 2.100, CGAD, gate after 2.300 "
        "and Age-blind Adam 2.200."
    )
    assert found(cgad=post, cgad_post=pre)[1][0] == "no"
    assert found(cgad=pre)[1][0] == "unsure"


def test_alpha_is_robust_or_not_at_each_delay() -> None:
    def found(default: Any, best: Any) -> tuple[str, str]:
        cells = {"cgad": {0.1: 3.0, 0.2: default, 0.4: best}, "adam": {0.2: 2.0}}
        summary = make(cells, "alpha_sweep", "outer.alpha", "delay.tau", 8)
        return outcome(summary, "alpha = 0.2")

    assert found(2.0, 2.1) == ("yes", "Tau = 8: CGAD is lowest at alpha = 0.2 (2.000).")
    assert found(2.02, 2.0)[0] == "yes"
    assert found(2.1, 2.0)[0] == "no"
    assert found([2.0, None, 2.0], 2.1)[0] == "no"
    assert found([2.1], [2.0])[0] == "unsure"
    alone = make({"cgad": {0.2: 2.0}}, "alpha_sweep", "outer.alpha", "delay.tau", 8)
    assert outcome(alone, "alpha = 0.2")[0] == "unsure"


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (3.0, "yes"),
        ([None] * 3, "yes"),
        (1.5, "no"),
        ([1.0, 2.0, 3.5], "part"),
        (None, "unsure"),
    ],
)
def test_the_ranking_holds_as_local_steps_grow(late: Any, expected: str) -> None:
    nesterov = {8: 3.0, 32: 3.0} | ({128: late} if late else {})
    cells = {"cgad": {8: 2.0, 32: 2.0, 128: 2.0}, "nesterov": nesterov}
    summary = make(cells, "h_sweep", "train.local_steps", "delay.tau", 8)
    assert outcome(summary, "ranking")[0] == expected


def grid(**cells: Mapping[int, Any]) -> dict[str, Any]:
    named = {
        name.replace("n", "nesterov ").replace("_", "/"): c
        for name, c in cells.items()
        if name[0] == "n"
    }
    rates = {
        n.replace("/", "/0.") if not n.endswith("/0") else n: c
        for n, c in named.items()
    }
    others = {name: c for name, c in cells.items() if name[0] != "n"}
    return make(rates | others, "tuned_nesterov", recipes={})


def test_tuned_nesterov_drops_its_momentum_or_not() -> None:
    claim = "drops its momentum"
    dropped = grid(n1_0={0: 2.1, 8: 2.5, 16: 3.0}, n1_9={0: 2.0, 8: 4.0, 16: 9.0})
    found, because = outcome(dropped, claim)
    assert found == "yes"
    assert because.startswith("The best momentum is 0 at tau = 8 and 0 at tau = 16.")
    kept = grid(n1_0={0: 2.1, 8: 2.5, 16: 3.0}, n1_9={0: 2.0, 8: 2.4, 16: 2.5})
    assert outcome(kept, claim)[0] == "no"
    half = grid(n1_0={8: 2.5, 16: 3.0}, n1_9={8: 2.4, 16: 9.0})
    assert outcome(half, claim)[0] == "part"
    noisy = grid(n1_0={8: [2.0, 2.5, 3.0]}, n1_9={8: [2.1, 2.3, 3.2]})
    assert outcome(noisy, claim)[0] == "unsure"
    lost = grid(n1_0={8: 2.5}, n1_9={8: [None] * 3})
    assert outcome(lost, claim)[0] == "yes"
    for one_kind in (grid(n1_0={8: 2.0}, n2_0={8: 2.1}), grid(n1_9={8: 2.0})):
        assert outcome(one_kind, claim)[0] == "unsure"


def test_tuned_nesterov_needs_one_setting_or_several() -> None:
    claim = "needs another setting"
    several = grid(n1_0={0: 2.5, 8: 2.5}, n1_9={0: 2.0, 8: 9.0})
    found, because = outcome(several, claim)
    assert found == "yes"
    assert because.startswith(
        "The best single setting, Nesterov 1/0, is furthest from the best pair at "
        "tau = 0: +0.500"
    )
    assert outcome(grid(n1_0={0: 2.0, 8: 2.5}, n1_9={0: 2.0, 8: 9.0}), claim)[0] == "no"
    assert outcome(grid(n1_0={8: 2.5}, n1_9={8: 9.0}), claim)[0] == "unsure"
    apart = grid(n1_0={0: [None] * 3, 8: 2.5}, n1_9={0: 2.0, 8: [None] * 3})
    assert outcome(apart, claim)[0] == "yes"


def test_cgad_is_lower_than_tuned_nesterov_or_not() -> None:
    tuned = {"n1_0": {0: 2.1, 8: 2.5, 16: 3.0}, "n1_9": {0: 2.0, 8: 4.0, 16: 9.0}}
    claim = "lower than tuned Nesterov"
    adam = {8: 2.6, 16: 2.0}
    found, because = outcome(grid(**tuned, cgad={8: 2.1, 16: 2.2}, adam=adam), claim)
    assert found == "yes"
    assert because.endswith(
        "Age-blind Adam minus it: +0.100 at tau = 8 and -1.000 at tau = 16."
    )
    assert outcome(grid(**tuned, cgad={8: 2.6, 16: 3.0}), claim)[0] == "no"
    assert outcome(grid(**tuned, cgad={8: 2.6, 16: 2.2}), claim)[0] == "part"
    assert outcome(grid(**tuned, cgad={8: [2.0, 2.9, 2.5]}), claim)[0] == "unsure"
    assert outcome(grid(**tuned, cgad={8: [None] * 3}), claim)[0] == "no"
    assert outcome(grid(**tuned), claim)[0] == "unsure"


def test_the_best_pair_is_named_and_the_end_of_the_grid() -> None:
    said = observations(grid(n1_0={0: 2.1, 8: 2.5}, n2_9={0: 2.0, 8: 4.0}))
    (best,) = [s for s in said if s.startswith("Best")]
    assert "2/0.9 (2.000) at tau = 0 and 1/0 (2.500) at tau = 8;" in best
    assert best.endswith("The rate is an end of the grid at tau = 0, 8.")


def test_a_grid_is_counted_and_not_told_one_by_one() -> None:
    cells = {"n1_0": {0: 2.1, 8: 2.5}, "n2_9": {0: 2.0, 8: 9.0}, "cgad": FLAT}
    said = observations(grid(**cells))
    assert not any(s.startswith("Nesterov") for s in said)
    assert "Settings of Nesterov that end below chance: 2 of 2 at tau = 0, " in said[-1]
    assert "1 of 2 at tau = 8" in said[-1]
    elsewhere = grid(**cells) | {"name": "delay_sweep"}
    assert any(s.startswith("Nesterov 2/0.9") for s in observations(elsewhere))
    assert not any(s.startswith("Best") for s in observations(elsewhere))


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ([1.0, 3.0, 5.0, 2.0, 4.0], "yes"),
        ([2.01, 2.02, 2.03, 2.04, 2.0], "no"),
        ([2.02, 2.04, 2.06, 2.08, 2.0], "unsure"),  # twice: within the factor of 2.5
        ([2.0], "unsure"),
        ([None, 1.0, 3.0, 5.0, 2.0], "unsure"),
    ],
)
def test_the_spread_of_adam_decay_grows_or_not(decay: Any, expected: str) -> None:
    cgad = [2.0, 2.01, 2.02, 2.03, 2.04]
    cells = {"adam_decay": {8: decay}, "cgad": {8: cgad}}
    more: Any = {"name": "seed_variance", "panel": "train.precision"}
    summary = make(cells, value="bf16_8bit", **more)
    assert outcome(summary, "seeds spread")[0] == expected
    exact = make(cells, value="float32", **more)
    assert outcome(exact, "seeds spread")[0] == "unsure"


# Summaries with little in them.


@pytest.mark.parametrize(
    "name",
    [
        *("delay_sweep", "alpha_sweep", "h_sweep", "tuned_nesterov", "seed_variance"),
        *("partial_sync", "gate_ablation", "delayed", "something else"),
    ],
)
@pytest.mark.parametrize("panel", ["", "delay.kind", "train.precision"])
@pytest.mark.parametrize(
    "losses",
    [
        {},
        {"cgad": {8: [2.0]}},
        {"cgad": {8: [None, None]}, "nesterov": {16: [None, 9.0]}},
        {"nesterov 0.7/0": {8: [None]}, "nesterov 0.7/0.9": {8: [None]}},
        {"cgad": {"a": 2.0, "b": 2.1}, "adam": {"a": 2.0}},
        {"adam": {0: 2.0}, "cgad": {16: 2.0}, "pa_cgad": {4: 2.0}},
    ],
)
def test_nothing_is_too_little(name: str, panel: str, losses: Losses) -> None:
    summary = make(losses, name, panel=panel, value="fixed", recipes={})
    assert all(isinstance(line, str) and line for line in verdicts(summary))
    assert {j.outcome for j in judge(summary)} <= {"yes", "no", "part", "unsure"}


def test_a_summary_that_went_through_json_says_the_same() -> None:
    summary = make({"cgad": {0: 2.0, 8: [2.1, None, 2.2]}, "adam": FLAT})
    assert verdicts(json.loads(json.dumps(summary))) == verdicts(summary)
    assert verdicts(make({})) == ["No cell has finished: there is nothing to say yet."]


def test_a_single_run_has_the_delay_of_its_rows() -> None:
    summary = make({"nesterov": {8: 13.0}, "cgad": {8: 2.0}}) | {"x": "", "panel": ""}
    assert observations(summary)[0] == (
        "Nesterov 0.7/0.9 ends above ln V = 5.545 at tau = 8."
    )
