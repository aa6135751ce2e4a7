"""The scripts that make the corpora: behind all packages, one of which is named as scripts/translate.py is."""

import sys
from pathlib import Path


sys.path.append(str(Path(__file__).parents[3] / "scripts"))
