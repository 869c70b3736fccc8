"""Whether object stores can be tried on this machine."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path


def missing() -> str:
    """Return why SeaweedFS cannot be started here, "" if it can."""
    program = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    return "" if program and importlib.util.find_spec("obstore") else "needs the extra s3"
