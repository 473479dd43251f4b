"""Sampler, clipping rule, query, noise and backend are words to be put together; a method is a name for some of them."""

import math

import pytest
import torch

import sordino
from sordino.app.runs import find
from sordino.app.runs.fit import carry_out_run
from sordino.app.runs.job import assemble_job
from sordino.app.runs.methods import METHODS, PLAIN_WORDS, WORDS, words_of
from sordino.app.runs.problem import learning_rate_schedule
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.settings import make_settings
from sordino.ledger.claims import Guarantee, NoGuarantee
from sordino.registry import PARTS

TINY = {"steps": 3, "records": 120, "seed": 3, "noise_multiplier": 1.5, "evaluate_every": 3}


def quiet(text):
    """Says nothing."""


def job_of(parameters=None, **given):
    return assemble_job(make_settings("spiral", {**TINY, **given}, parameters), quiet)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_same_run_as_its_words(name):
    words = words_of(find("spiral").but(method=name))
    alias, said = job_of(method=name), job_of(**words)
    assert alias.event() == said.event()
    assert repr(alias.create_query()) == repr(said.create_query())
    assert str(alias.sampler) == str(said.sampler)
    assert repr(alias.create_backend()) == repr(said.create_backend())


def test_plain_words_are_dp_sgd():
    assert words_of(find("spiral")) == PLAIN_WORDS
    assert all(next(iter(WORDS[part])) == PLAIN_WORDS[part] for part in PARTS)


COMBINED = {
    "sorted × median": ({"sampler": "sorted-top-k", "clipping": "batch-median"}, {"cap": 5.0}, False),
    "sorted × min": ({"sampler": "sorted-quantile", "clipping": "batch-minimum"}, {}, False),
    "sorted × log": ({"sampler": "sorted-top-k", "clipping": "logarithmic"}, {"pool": 4.0}, False),
    "threshold × log": ({"sampler": "threshold", "clipping": "logarithmic"}, {"threshold": 0.5}, True),
    "shuffle × lookahead × automatic": (
        {"sampler": "shuffle", "query": "noisy-lookahead", "clipping": "automatic"},
        {"rho": 1.5},
        True,
    ),
    "projected × adaptive": ({"query": "projected", "clipping": "adaptive-quantile"}, {}, False),
    "microbatches × psac": ({"query": "microbatches", "clipping": "psac"}, {"groups": 3.0}, True),
    "jl × automatic": ({"backend": "jl", "clipping": "automatic"}, {"projections": 30.0}, True),
    "balls × vmap": ({"sampler": "balls-in-bins", "backend": "vmap"}, {}, True),
    "Poisson × laplace": ({"clipping": "flat-l1", "noise": "laplace"}, {}, True),
}


@pytest.mark.parametrize(("words", "parameters", "proved"), COMBINED.values(), ids=COMBINED)
def test_words_are_put_together_and_claim_what_they_release(words, parameters, proved, tmp_path):
    settings = make_settings("spiral", {**TINY, **words}, parameters)
    planned = assemble_job(settings, quiet).event()
    claim = carry_out_run(settings, tmp_path, Silent()).claim
    assert isinstance(claim, Guarantee if proved else NoGuarantee)
    if proved:
        assert claim.event == planned


def test_what_two_words_have_is_said_with_its_part():
    words = {"sampler": "threshold", "clipping": "global"}
    with pytest.raises(ValueError, match=r"sampler and clipping both have it; say sampler\.threshold or clipping\."):
        job_of({"threshold": 3.0}, **words)
    for name in ("clipping.threshold", "clipping.threshold"):
        job = job_of({name: 3.0, "sampler.threshold": 0.25}, **words)
        assert job.create_query().clipping.threshold == 3.0
    assert job.sampler.threshold == 0.25


def test_a_parameter_that_no_word_has_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"parameter 'gama': not one of this method's; there is gamma \(automatic\)"):
        job_of({"gama": 1.0}, clipping="automatic")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"clipping": "flatt"}, "clipping='flatt': there is flat, "),
        ({"query": "sum"}, "query='sum': there is noisy-sum, "),
        ({"backend": "hooks"}, "backend='hooks': there is captured, "),
        ({"noise": "uniform"}, "noise='uniform': there is gaussian, "),
        ({"method": "psac", "clipping": "flat"}, "the method psac means clipping='psac'; leave it out"),
    ],
)
def test_wrong_words_are_refused_before_data_is_read(given, why):
    with pytest.raises(ValueError, match=why):
        make_settings("spiral", given)


def test_laplace_noise_needs_a_clipping_rule_that_bounds_l1():
    with pytest.raises(TypeError, match="Laplace noise needs an L1 bound"):
        job_of(noise="laplace")


def test_without_bound_and_noise_the_query_and_the_sampler_stay():
    job = assemble_job(
        make_settings("spiral", {"query": "projected", "sampler": "sorted-top-k", "non_private": True}), quiet
    )
    assert isinstance(job.create_query(), sordino.Projected)
    assert job.create_query().clipping.bound == math.inf
    assert isinstance(job.sampler, sordino.Sorted)


def test_hidden_layers_have_the_widths_asked_for():
    job = job_of(model="mnist-net", widths=(7, 5))
    assert [tuple(p.shape) for p in job.problem.model.parameters()] == [(7, 2), (7,), (5, 7), (5,), (3, 5), (3,)]
    with pytest.raises(ValueError, match="linear has its own; need one of mlp"):
        job_of(model="linear", widths=(7,))


def test_pixels_are_scaled_channel_by_channel():
    from sordino.app.runs.encoded_records import scale_pixels

    images = torch.tensor([0, 255], dtype=torch.uint8).view(1, 2, 1, 1)
    assert scale_pixels(images, (0.5, 0.25), (0.5, 2.0)).flatten().tolist() == [-1.0, 0.375]
    with pytest.raises(ValueError, match="the images have 2 channels; need one number, or one for each"):
        scale_pixels(images, (0.5, 0.25, 0.1), 1.0)


SCHEDULES = {
    "linear, then constant": (
        {"schedule": "linear", "schedule_steps": 4, "final_rate": 0.5},
        [1, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5, 0.5],
    ),
    "per epoch": (
        {"schedule": "linear", "schedule_per": "epoch"},
        [1, 1, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25],
    ),
    "warm-up": ({"warm_up": 3}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
    "rise and fall": ({"schedule": "rise-and-fall"}, [0, 0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25]),
    "cosine per epoch": (
        {"schedule": "cosine", "schedule_per": "epoch", "final_rate": 0.2},
        [0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * (t // 2) / 4)) for t in range(8)],
    ),
}


@pytest.mark.parametrize(("fields", "rates"), SCHEDULES.values(), ids=SCHEDULES)
def test_learning_rates_are_those_of_the_sources(fields, rates):
    recipe = find("spiral").but(learning_rate=1.0, steps=8, rate=0.5, **fields)
    assert [learning_rate_schedule(recipe)(t) for t in range(8)] == pytest.approx(rates)


def test_momentum_of_adagrad_is_refused():
    with pytest.raises(ValueError, match=r"momentum=0\.5: AdaGrad has none"):
        job_of(optimizer="adagrad", momentum=0.5)
