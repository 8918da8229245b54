"""Config files that aren't there: what was probably meant."""

import difflib
from pathlib import Path

_FOLDER = Path("configs")


def no_file(path: Path) -> str:
    """Says in a line that there is no such config file, and where they are."""
    if path.is_dir():
        return f"{path} is a directory: name a config file, such as {_some(path)}"
    found = {
        file.stem: str(file)
        for folder in (_FOLDER, path.parent)
        for file in folder.glob("*.py")
        if file.stem != "__init__"
    }
    near = difflib.get_close_matches(path.stem, found, n=1)
    if near:
        cure = f"did you mean {found[near[0]]}?"
    elif _FOLDER.is_dir():
        cure = f"see {_FOLDER}/"
    else:
        cure = "run from the checkout's root"
    return f"there is no config file {path}: {cure}"


def _some(folder: Path) -> str:
    files = sorted(f for f in folder.glob("*.py") if f.stem != "__init__")
    return str(files[0] if files else _FOLDER / "b3_l4.py")
