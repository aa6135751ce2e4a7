"""Combinations of model and languages that requests may not name, for the description of a server with several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .protocols import AUTO


# Field ("model", "source", "target") -> values that are refused together with those of the other fields; None: it is
# left out. A field that is not there may have any value.
Refusal = Mapping[str, Sequence[str] | None]
# Whether a model is found for a source and a target, of which either may be None.
Accepts = Callable[[str | None, str | None], bool]


@dataclass(frozen=True)
class Choice:
    """Models that requests choose among."""

    names: Sequence[str]  # Their names
    sources: Sequence[Sequence[str]]  # Codes of the source languages of each
    targets: Sequence[Sequence[str]]  # Codes and tags of the target languages of each
    accepts: Accepts  # Which languages choose one of them

    @property
    def all_sources(self) -> list[str]:
        """Those of all models, each once."""
        return [*dict.fromkeys(source for each in self.sources for source in each)]

    @property
    def all_targets(self) -> list[str]:
        """Those of all models, each once."""
        return [*dict.fromkeys(target for each in self.targets for target in each)]

    @property
    def is_uniform(self) -> bool:
        """Whether all models have the same languages."""
        return len({*map(tuple, self.sources)}) == len({*map(tuple, self.targets)}) == 1


def by_languages(choice: Choice) -> list[Refusal]:
    """What is refused where languages choose the model, but for a request without any."""
    sources, targets, accepts = choice.all_sources, choice.all_targets, choice.accepts
    found: list[Refusal] = []
    for source in sources:
        reached = {target for among, own in zip(choice.sources, choice.targets) if source in among for target in own}
        found.append({"source": [source], "target": [target for target in targets if target not in reached]})
    found.append({"source": [source for source in sources if not accepts(source, None)], "target": None})
    found.append({"source": None, "target": [target for target in targets if not accepts(None, target)]})
    return _some(found)


def by_fields(choice: Choice, accepts_of: Callable[[str], Accepts]) -> list[Refusal]:
    """What is refused where `model`, `source` and `target` are fields, and `source` may be `AUTO`."""
    sources, targets, accepts = choice.all_sources, choice.all_targets, choice.accepts
    found = by_languages(choice)
    found.append({"source": [AUTO], "target": [target for target in targets if not accepts(AUTO, target)]})
    if not accepts(AUTO, None):
        found.append({"source": [AUTO], "target": None})
    if not accepts(None, None):
        found.append({"source": None, "target": None})
    found = [{"model": None, **each} for each in found]
    for name, own_sources, own_targets in zip(choice.names, choice.sources, choice.targets):
        found.append({"model": [name], "source": [one for one in sources if one not in own_sources]})
        found.append({"model": [name], "target": [one for one in targets if one not in own_targets]})
        takes = accepts_of(name)
        found.append(
            {"model": [name], "source": [AUTO], "target": [one for one in own_targets if not takes(AUTO, one)]}
        )
        if not takes(None, None):
            found.append({"model": [name], "target": None})
    return _some(found)


def _some(found: Sequence[Refusal]) -> list[Refusal]:
    """Those that refuse something."""
    return [each for each in found if [] not in each.values()]
