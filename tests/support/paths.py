"""Where the parts of the repository are."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parent.parent
EXAMPLES = ROOT / "examples"
