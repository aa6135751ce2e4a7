"""What each layer would predict already, and which neurons of its feed-forward fire."""

import torch
from torch import nn

from .attributions import rows_of
from .interventions import stack_of
from .requests import NeuronsRequest, RanksRequest, RequestError
from .results import NeuronsResult, RanksResult
from .subject import Subject, check_ours
from .walk import norm_name


def ranks(subject: Subject, request: RanksRequest) -> RanksResult:
    """The rank and the probability of each token of the output, as if each layer were the last (logit lens)."""
    check_ours(subject, request)
    found = subject.forced(request)
    places, ids, pieces = rows_of(subject, found, request.target_ids)
    stack, numbers = stack_of(found.copy.model, subject.lens_stack), found.copy.layers[subject.lens_stack]
    seen = found.record({str(number): layer for number, layer in zip(numbers, stack.layers)})
    dtype = found.copy.model.get_output_embeddings().weight.dtype
    found_ranks, probabilities = [], []
    for number in numbers:
        states = seen.outputs[str(number)][places].to(dtype)  # (R, D)
        with torch.no_grad():
            logits = subject.as_last_layer(found.copy, states[None])[0].float()  # (R, V)
        own = torch.tensor(ids, device=logits.device)[:, None]
        found_ranks.append((logits > logits.gather(1, own)).sum(dim=1))
        probabilities.append(logits.softmax(dim=-1).gather(1, own)[:, 0])
    has_norm = not isinstance(stack.layer_norm, nn.Identity)
    name = norm_name(subject.model.config) if has_norm else ""
    return RanksResult(pieces, numbers, torch.stack(found_ranks), torch.stack(probabilities), name)


def neurons(subject: Subject, request: NeuronsRequest) -> NeuronsResult:
    """The neurons of a feed-forward that fire most at a token, and how they fire at all others."""
    check_ours(subject, request)
    found = subject.forced(request)
    layer = stack_of(found.copy.model, request.stack).layers[found.copy.place(request.stack, request.layer)]
    if not hasattr(layer, "fc2"):
        raise RequestError("layer", f"{request.layer} of the {request.stack} has no feed-forward")
    fired = found.record({"fc2": layer.fc2}).inputs["fc2"]  # (rows, d_ff)
    if request.piece >= len(fired):
        raise RequestError("piece", f"is {request.piece}; expected 0 to {len(fired) - 1}, a row of this layer")
    # With a gate, and with some functions, a neuron may also say much by a number below 0.
    best = fired[request.piece].abs().topk(min(request.top, fired.shape[1])).indices
    pieces = found.source_pieces if request.stack == "encoder" else found.read
    return NeuronsResult(pieces, best.tolist(), fired[:, best].t(), fired.shape[1])
