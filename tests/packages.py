"""Small packages for the tests of what installed packages bring."""

from pathlib import Path


def install(folder: Path, package: str, code: str, **groups: dict[str, str] | str) -> None:
    """A package with a module of that name that holds `code`, and entry points in the groups `closelook.<group>`.

    A group is a value, or several by name.
    """
    (folder / f"{package}.py").write_text(code)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n")
    sections = []
    for group, entries in groups.items():
        values = {"it": entries} if isinstance(entries, str) else entries
        sections += [f"[closelook.{group}]", *(f"{name} = {value}" for name, value in values.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(sections))
