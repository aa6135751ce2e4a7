"""What the tests of documents share: a translation that can be read."""

import pytest
import torch

from vanilla_transformer_hf.translation.documents.document import Reading, read_document
from vanilla_transformer_hf.translation.results import Translation


@pytest.fixture
def shout():
    """`shout(content, name)`: a document whose texts are in capitals, word by word."""

    def shout(content, name, language=None, **reading):
        document = read_document(content, Reading(name, **reading))
        found = [[Translation(text.upper())] for text in document.texts]

        def align(pairs):
            return [torch.eye(len(source.split())) for source, _ in pairs]

        return document.translated(found, align, language)

    return shout
