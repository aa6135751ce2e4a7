"""A translator that answers at once."""

import pytest
from backwards import Backwards


@pytest.fixture
def backwards():
    return Backwards()
