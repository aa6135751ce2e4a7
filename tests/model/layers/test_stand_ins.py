"""What stands in for modules."""

import torch
from torch import nn

from vanilla_transformer_hf.model.layers.stand_ins import OPEN_CONTEXTS, STAND_INS, stand_in_for, standing_in


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(2, 2)

    def forward(self, states):
        return stand_in_for(self.projection)(states)


def test_compiled_modules_are_stood_in_for_too_and_whole_outside_of_a_context():
    module, states = Calls(), torch.ones(1, 2)
    plain, whole = torch.compile(module, backend="eager"), torch.compile(module, backend="eager", fullgraph=True)
    expected = module(states)
    assert torch.equal(whole(states), expected) and torch.equal(plain(states), expected)
    with standing_in({id(module.projection): torch.zeros_like}):
        assert not module(states).any() and not plain(states).any()
        with standing_in({id(module): None}):
            assert not module(states).any()
    assert torch.equal(plain(states), expected) and not STAND_INS.get() and not OPEN_CONTEXTS
