"""CRC-32C (Castagnoli), as implemented by the `crc32c` package.

    crc32c(data)           the checksum of any buffer
    crc32c(data, value)    continues an earlier checksum

This is the library function itself, because a wrapper would cost as much as the checksum of 100
bytes. `import crc32c` would also load the command line and the version of that package, and with
them argparse, email, importlib.metadata and zipfile: 33 modules that nothing else here needs, and
1.8 MB for as long as the process runs. So only its extension module is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, Final


def _function() -> Callable[..., int]:
    package = find_spec("crc32c")  # finds the package without importing it
    folders = None if package is None else package.submodule_search_locations
    spec = None if folders is None else PathFinder.find_spec("crc32c._crc32c", folders)
    if spec is None or spec.loader is None:  # a version of the package with another layout
        from crc32c import crc32c as found  # noqa: PLC0415 - not needed otherwise

        return found
    extension: Any = module_from_spec(spec)
    spec.loader.exec_module(extension)
    function: Callable[..., int] = extension.crc32c
    return function


crc32c: Final = _function()
