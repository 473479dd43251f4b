import pytest

from tests.distributed.gang import Gang


@pytest.fixture(scope="session")
def gang(tmp_path_factory):
    made = Gang(tmp_path_factory.mktemp("gang"))
    yield made
    made.close()
