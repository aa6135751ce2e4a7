"""What `push` publishes of a folder of each kind, beside the record."""

import json

import pytest
from golden_plans import ALL, RECORD, plans


@pytest.mark.parametrize("kind", ALL)
def test_a_plan_is_as_recorded(kind, tmp_path):
    assert plans(kind, tmp_path) == json.loads(RECORD.read_text(encoding="utf-8"))[kind]
