"""The compilers that the package was built with."""

from __future__ import annotations

import os
import shutil
import sysconfig


def compilers() -> dict[str, str]:
    """CMake's language → compiler, where one is known; then builds of llama.cpp are found in the cache."""
    found = {}
    for language, name in (("C", "CC"), ("CXX", "CXX")):
        path = shutil.which((os.environ.get(name) or sysconfig.get_config_var(name) or "").split(" ")[0])
        if path:
            found[language] = path
    return found
