"""Pictures of a position scheme, from the same hooks that the layers call."""

import torch

from .interventions import stack_of
from .requests import PositionsRequest
from .results import Picture, PositionsResult
from .subject import Subject, check_ours
from .walk import SIZES


# Maximum number of pictures of heads and layers.
MOST_PICTURES = 32


@torch.no_grad()
def positions(subject: Subject, request: PositionsRequest) -> PositionsResult:
    check_ours(subject, request)
    stack = stack_of(subject.copy(request.off).model, request.stack)
    scheme, config = stack.embed_positions, subject.model.config
    name = config.position_encoding if request.stack == "encoder" else config.decoder_position_encoding
    length = min(request.length, scheme.longest or request.length)
    places = torch.arange(length)[None]
    width = SIZES[request.stack](config).width
    pictures = []
    added = scheme(torch.zeros(1, length, width), places)[0]
    if added.any():
        pictures.append(Picture("added", None, added))
    apply_rotary = scheme.rotary_at(places)
    if apply_rotary is not None:
        d_k = stack.layers[0].self_attn.d_k
        rotated = apply_rotary(torch.ones(1, 1, length, d_k))[0, 0]
        pictures.append(Picture("rotated", None, rotated))
    if scheme.is_relative:
        bias = scheme.bias(places, places)
        if bias.dim() == 4:
            pictures += [Picture("scores", head, values) for head, values in enumerate(bias[0][:MOST_PICTURES])]
        for layer, (_, position_bias) in enumerate(zip(stack.layer_order, scheme.layer_biases(places, places))):
            for what, name in (("keys", "key_vectors"), ("values", "value_vectors")):
                table = getattr(position_bias, name, None)
                if table is not None and len(pictures) < MOST_PICTURES:
                    pictures.append(Picture(what, layer, table))
    return PositionsResult(str(name), pictures)
