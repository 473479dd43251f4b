import pytest

from tests.ranks.gang import Gang


@pytest.fixture(scope="session")
def gang(tmp_path_factory):
    made = Gang(tmp_path_factory.mktemp("gang"))
    yield made
    made.close()
