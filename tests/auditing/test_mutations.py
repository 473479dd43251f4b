"""Every seeded mistake is noticed, by a refusal, the selftest or a replay; and the package as it is by none."""

import pytest

from tests.auditing.mutate import noticed
from tests.auditing.mutations import MUTATIONS, SURVIVED


def test_there_are_enough_and_each_has_a_name_of_its_own():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 25
    assert set(SURVIVED) <= {mutation.name for mutation in MUTATIONS}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mistake_is_one_place_in_the_source(mutation):
    from pathlib import Path

    import sordino

    text = (Path(sordino.__file__).parent / mutation.file).read_text()
    assert text.count(mutation.old) == 1
    assert mutation.new != mutation.old


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mistake_is_noticed(mutation):
    assert noticed(mutation)["level"] is not None


@pytest.mark.slow
def test_nothing_is_noticed_where_there_is_no_mistake():
    assert noticed(None, also_replay=True) == {"level": None, "checks": [], "replay": None}
