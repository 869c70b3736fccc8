"""The code of each side of `bench --against`: an environment with its revision's packages, and the proof of it.

Each side has a virtual environment whose path has links to the side's packages and then the libraries of this interpreter,
but no folder of a checkout, so nothing else there is imported (a sitecustomize.py, a module named like a library).
"""

import dataclasses
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.check.revisions import Repository, read_project
from storebench.errors import CellFailedError, OutputError, UsageError
from storebench.formats.origin import NO_COMMIT, module_source
from storebench.formats.registry import ENTRY_POINT_GROUP
from storebench.probes.code import checkout_of, code_digest, package_folder
from storebench.record.schema import CodeFacts, Record, Status
from storebench.system.progress import Say


@dataclass(frozen=True, kw_only=True)
class SideCode:
    python: Path
    """Interpreter that imports this code."""
    tree: Path
    """Folder that holds the imported storebench package."""
    facts: CodeFacts
    """Code facts that its records must contain; `plugin` is "" if storebench itself is compared."""
    formats: frozenset[str] = frozenset()
    """Formats whose records must name the plugin."""
    working: bool = False
    """Whether this is a working tree, in which commits may happen during the run: then only digests must match."""

    def check(self, name: str, records: Sequence[Record]) -> None:
        """Refuse records of other code than this side's."""
        for record in (record for record in records if record.status is Status.OK):
            code = record.code or CodeFacts(digest="unknown")
            wanted = [("digest", code.digest, self.facts.digest)]
            if not self.working:
                wanted.append(("commit", code.commit, self.facts.commit))
            if record.cell.backend.format in self.formats:
                wanted.append(("plugin", self._proven(code.plugin), self._proven(self.facts.plugin)))
            difference = "; ".join(
                f"{what} {got!r}, not {want!r}" for what, got, want in wanted if got != want
            )
            if difference:
                raise CellFailedError(
                    f"the {name} side ran other code: {difference}",
                    where=self.tree,
                    hint="Was the code changed during the run? Start again.",
                )

    def _proven(self, plugin: str) -> str:
        """Return the part of "NAME COMMIT DIGEST" that cannot change during the run."""
        name, _, rest = plugin.partition(" ")
        return f"{name} {rest.rpartition(' ')[2]}" if self.working else plugin


def side_environment() -> dict[str, str]:
    """Return an environment for a side's process in which no variable affects which packages are imported."""
    redirecting = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE")
    kept = {name: value for name, value in os.environ.items() if name not in redirecting}
    # PYTHONSAFEPATH also reaches the cells of older revisions, which were started without -P.
    return {**kept, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}


def storebench_sides(root: Path, worktree: Path, scratch: Path, say: Say) -> tuple[SideCode, SideCode]:
    """Return both sides for comparing storebench itself: the worktree's code and the working tree's."""
    _say_libraries(root, worktree, say)
    sides = []
    for name, tree in (("baseline", worktree), ("contender", root)):
        package = tree / "storebench"
        python = _borrowing(scratch / name, [package], [root, worktree])
        facts = CodeFacts(digest=code_digest(package), commit=str(checkout_of(package)))
        sides.append(SideCode(python=python, tree=tree, facts=facts, working=tree == root))
    return sides[0], sides[1]


def _say_libraries(project: Path, before: Path, say: Say) -> None:
    """Say that both sides use the installed libraries where the revision asks for others."""
    if read_project(before).get("dependencies") != read_project(project).get("dependencies"):
        say("the dependencies differ; both sides use the installed libraries")


def plugin_sides(
    repository: Repository, worktree: Path, scratch: Path, say: Say
) -> tuple[SideCode, SideCode]:
    """Return both sides for comparing a plugin: this storebench twice, and two revisions of the plugin."""
    before = worktree / repository.project.relative_to(repository.root)
    _say_libraries(repository.project, before, say)
    sides = []
    for name, project in (("baseline", before), ("contender", repository.project)):
        formats = read_project(project).get("entry-points", {}).get(ENTRY_POINT_GROUP) or repository.formats
        sources = _plugin_code(repository, project, formats, scratch / f"{name}-plugin")
        package = package_folder()
        checkouts = [repository.root, worktree, *([package.parent] if checkout_of(package).commit else [])]
        python = _borrowing(scratch / name, [*sources, package], checkouts)
        _register(scratch / name, repository.plugin, formats)
        commit = str(checkout_of(*sources)) or NO_COMMIT
        plugin = f"{repository.plugin} {commit} {code_digest(*sources)}"
        facts = CodeFacts(digest=code_digest(package), commit=str(checkout_of(package)), plugin=plugin)
        side = SideCode(python=python, tree=package.parent, facts=facts, formats=frozenset(formats))
        sides.append(dataclasses.replace(side, working=name == "contender"))
    return sides[0], sides[1]


def _plugin_code(
    repository: Repository, project: Path, formats: Mapping[str, str], target: Path
) -> tuple[Path, ...]:
    """Return the sources of a revision of the plugin's formats; compiled parts that they lack are built into `target`."""
    modules = _modules(formats)
    places = [project, project / "src"]
    installed = module_source(modules[0])
    if installed is not None and installed.is_relative_to(repository.project):
        places.insert(0, project / installed.parent.relative_to(repository.project))
    for place in places:
        sources = _sources_in(place, modules)
        if sources is None:
            continue
        compiled = installed is not None and _compiled(installed)
        if compiled and not any(map(_compiled, sources)):
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
            command = [*pip, "--target", str(target), str(project)]
            done = subprocess.run(
                command, env=side_environment(), capture_output=True, text=True, check=False
            )
            if done.returncode:
                last = (done.stderr or done.stdout).strip().splitlines()[-1:]
                raise OutputError(f"building {repository.plugin} failed: {' '.join(last)}", where=project)
            return _sources_in(target, modules) or ()
        return sources
    raise UsageError(
        f"the plugin's modules are not there: {', '.join(modules)}",
        where=project,
        hint="They are searched beside pyproject.toml and in src.",
    )


def _modules(formats: Mapping[str, str]) -> list[str]:
    """Return the top-level packages and modules from which formats are imported."""
    return sorted({value.partition(":")[0].partition(".")[0] for value in formats.values()})


def _sources_in(folder: Path, modules: Sequence[str]) -> tuple[Path, ...] | None:
    """Return the packages and modules with these names in a folder; None if one is missing."""
    sources = []
    for name in modules:
        paths = (folder / name, folder / f"{name}.py")
        source = next((path for path in paths if path.exists()), None)
        if source is None:
            return None
        sources.append(source.resolve())
    return tuple(sources)


def _compiled(source: Path) -> bool:
    return source.is_dir() and any(source.rglob("*.so"))


def _register(environment: Path, name: str, formats: Mapping[str, str]) -> None:
    """Write the metadata through which an environment finds the plugin's formats, of modules that the digest covers alone."""
    folder = _site_packages(environment) / f"{name.replace('-', '_')}-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n", encoding="utf-8")
    points = [f"{key} = {value}" for key, value in formats.items()]
    text = "\n".join([f"[{ENTRY_POINT_GROUP}]", *points, ""])
    (folder / "entry_points.txt").write_text(text, encoding="utf-8")
    (folder / "top_level.txt").write_text("\n".join([*_modules(formats), ""]), encoding="utf-8")


def _borrowing(environment: Path, own: Sequence[Path], checkouts: Sequence[Path]) -> Path:
    """Return an environment's interpreter that imports `own` and installed libraries, but nothing else from `checkouts`."""
    venv.create(environment, symlinks=True, with_pip=False)
    links = environment / "own"
    links.mkdir()
    for source in own:
        (links / source.name).symlink_to(source.resolve())
    show_path = (sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))")
    done = subprocess.run(show_path, capture_output=True, text=True, check=True, cwd="/")
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {f"{path}/lib-dynload" for path in standard}
    paths = [str(links)]
    for path in map(Path, filter(None, json.loads(done.stdout))):
        in_checkout = any(path.resolve().is_relative_to(checkout.resolve()) for checkout in checkouts)
        is_library = path.name in ("site-packages", "dist-packages") or not in_checkout
        if is_library and str(path) not in standard and path.is_dir():
            paths.append(str(path))
    target = _site_packages(environment) / "storebench-against.pth"
    target.write_text("\n".join(paths) + "\n", encoding="utf-8")
    return environment / "bin" / "python"


def _site_packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
