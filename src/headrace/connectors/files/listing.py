"""Which files a path stands for.

A path is a file or a folder, as a plain path or a `file://` URI; a folder stands for all files in it and below. Names
that begin with `.` or `_` are hidden (half-written and staged files, markers), so are files in hidden folders, and
files of zero length: somebody has created them and not written them yet. A file that is named itself is never hidden.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.connectors.files.split import Fingerprint
from headrace.errors import ConfigurationError


def local_path(path: str | os.PathLike[str]) -> str:
    """The absolute local path of a plain path or a `file://` URI."""
    text = os.fspath(path)
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{text} names the host {parts.netloc!r}. A local file has three slashes: file:///folder/file."
            )
        return os.path.abspath(unquote(parts.path))
    if "://" in text:
        raise ConfigurationError(f"{text} is on a {parts.scheme} file system; give a plain path or a file:// URI.")
    return os.path.abspath(text)


def local_paths(paths: Sequence[str | os.PathLike[str]], what: str) -> tuple[str, ...]:
    """All of them, and at least one."""
    if not paths:
        raise ConfigurationError(f"{what} has no path. Give at least one file or folder.")
    return tuple(local_path(path) for path in paths)


def list_files(paths: Sequence[str]) -> dict[str, Fingerprint]:
    """Every readable file under the paths with its fingerprint, sorted by path. A path that is not there is refused."""
    found: dict[str, Fingerprint] = {}
    for path in paths:
        try:
            found.update(_files_at(path))
        except FileNotFoundError:
            raise ConfigurationError(
                f"{path} does not exist. Create the folder or file, or correct the path of FileSource."
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be looked at: {error}. Let the driver read it, or correct the path of FileSource."
            ) from error
    return dict(sorted(found.items()))


def list_present_files(paths: Sequence[str]) -> tuple[dict[str, Fingerprint], dict[str, OSError]]:
    """The same of the paths that can be looked at now, and the others with what is in the way."""
    found: dict[str, Fingerprint] = {}
    away: dict[str, OSError] = {}
    for path in paths:
        try:
            found.update(_files_at(path))
        except OSError as error:
            away[path] = error
    return dict(sorted(found.items())), away


def _files_at(path: str) -> dict[str, Fingerprint]:
    found: dict[str, Fingerprint] = {}
    for file in _candidates(path):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue  # deleted, or renamed into its final name, since the folder was listed
        if status.st_size > 0:
            found[file] = Fingerprint.of(status)
    return found


def _candidates(path: str) -> Iterator[str]:
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        yield path
        return
    if not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "neither a file nor a folder", path)

    def refused(error: OSError) -> None:
        # Of folders below, those that may not be read are left out, and some are gone since their name was seen.
        if error.filename == path:
            raise error

    for folder, folders, files in os.walk(path, onerror=refused):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield from (str(Path(folder, name)) for name in files if not is_hidden(name))


def is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))
