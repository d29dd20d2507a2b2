"""The compiled part of this installation, if there is one."""

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

logger = logging.getLogger(__name__)


@cache
def compiled() -> ModuleType | None:
    """The module `looseleaf._native`; None where the package was installed without a working C++
    compiler, which is said once."""
    try:
        return import_module("looseleaf._native")
    except ImportError as error:
        logger.warning(
            "installed without its compiled part, so only the reference executor can be used; "
            "install a C++20 compiler and reinstall looseleaf to have it (%s)",
            error,
        )
        return None
