"""The git repository that `bench --against` compares, and one of its revisions in a temporary worktree."""

import contextlib
import subprocess
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.errors import OutputError, UsageError
from storebench.formats.registry import ENTRY_POINT_GROUP
from storebench.probes.code import checkout_of, git_environment, package_folder
from storebench.system.progress import Say
from storebench.system.scratch import scratch_folder


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A checkout that a comparison is about."""

    root: Path
    """Its top folder."""
    project: Path
    """Folder of the plugin's pyproject.toml; `root` for storebench itself."""
    plugin: str
    """Name of the plugin's package; "" for storebench itself."""
    formats: dict[str, str]
    """Format name -> "module:Class" of the formats that the plugin registers; empty for storebench itself."""

    def against(self, commit: str) -> str:
        """Return a line that names both sides of a comparison with a commit."""
        name = self.plugin or "storebench"
        return f"{name} in {self.root}: revision {commit[:12]} against the working tree"


def find_repository(named: Path | None, formats: Collection[str]) -> Repository:
    """Return the repository of `named` or of the current folder, or else the checkout from which storebench was imported."""
    start = Path.cwd() if named is None else named
    root = _toplevel(start)
    repository = _recognised(root, start.resolve()) if root else None
    if repository is not None:
        if repository.plugin and not set(repository.formats) & set(formats):
            raise UsageError(
                f"the scenario uses no code from it: {repository.plugin} registers "
                f"{', '.join(repository.formats)}, the scenario reads {', '.join(sorted(formats))}",
                where=repository.root,
                hint="Name another --repository, or a scenario with its formats.",
            )
        return repository
    if named is not None:
        reason = (
            "neither storebench nor a package with storebench.formats" if root else "not in a git repository"
        )
        raise UsageError(f"{reason}, so it has no revisions to compare", where=named, hint="See docs/ci.md.")
    package = package_folder()
    own = _toplevel(package) if checkout_of(package).commit else None
    if own is None:
        raise UsageError(
            "this storebench is installed, not checked out, so it has no revisions to compare",
            where=package,
            hint="Name a checkout of storebench or of a plugin with --repository PATH.",
        )
    return Repository(root=own, project=own, plugin="", formats={})


def _recognised(root: Path, start: Path) -> Repository | None:
    """Return the repository if it is storebench or holds a plugin, else None."""
    if (root / "storebench" / "__init__.py").is_file() and read_project(root).get("name") == "storebench":
        return Repository(root=root, project=root, plugin="", formats={})
    for folder in (folder for folder in (start, *start.parents) if folder.is_relative_to(root)):
        project = read_project(folder)
        formats = project.get("entry-points", {}).get(ENTRY_POINT_GROUP, {})
        if formats:
            return Repository(root=root, project=folder, plugin=str(project.get("name", "")), formats=formats)
    return None


def read_project(folder: Path) -> dict[str, Any]:
    """Return the [project] table of a folder's pyproject.toml; empty if there is none."""
    try:
        about = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    project = about.get("project", {})
    return project if isinstance(project, dict) else {}


def commit_of(root: Path, ref: str) -> str:
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except OutputError:
        raise UsageError(
            f"git knows no revision {ref!r}", where=root, hint="Is it fetched? A shallow clone has few."
        ) from None


@contextlib.contextmanager
def checked_out(root: Path, commit: str, say: Say) -> Iterator[tuple[Path, Path]]:
    """Check a commit out into a temporary worktree; yield its folder, and a temporary folder for related files."""
    with scratch_folder("comparison") as scratch:
        worktree = scratch.resolve() / "tree"
        say(f"checking out {commit[:12]}")
        git(root, "worktree", "prune")  # removes worktrees of killed comparisons
        git(root, "worktree", "add", "--detach", "--quiet", str(worktree), commit)
        try:
            yield worktree, worktree.parent
        finally:
            with contextlib.suppress(OutputError):
                git(root, "worktree", "remove", "--force", str(worktree))
            git(root, "worktree", "prune")


def _toplevel(folder: Path) -> Path | None:
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    except OutputError:
        return None


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, env=git_environment(), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("git is not installed, and --against needs it", hint="Install git.") from None
    if done.returncode:
        raise OutputError(f"git {arguments[0]}: {done.stderr.strip() or 'failed'}", where=folder)
    return done.stdout.strip()
