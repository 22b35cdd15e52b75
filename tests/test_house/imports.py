"""Who may import whom: one table, and a checker that reads a module's text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "taftcache"

# Part → the parts it may import besides itself. Whatever is not named here is a breach.
MAY_IMPORT = {
    "errors": set(),
    "names": set(),
    "cache": {"errors"},
    "tangent": {"errors"},
    "objective": {"errors", "tangent"},
    "solve": {"errors", "tangent", "objective"},
    "privacy": {"errors", "tangent", "objective"},
    "backbone": {"errors", "cache", "tangent"},
    "transfer": {"errors", "cache", "backbone", "tangent", "objective", "solve", "component", "recipe"},
    "component": {"errors", "names", "cache", "tangent", "solve", "backbone.architecture"},
    "composition": {"errors", "tangent", "component"},
    "baselines": {"errors", "tangent", "objective"},
    "attribution": {"errors", "tangent", "objective", "solve"},
    "signature": {"errors"},
    "recipe": {"errors", "backbone.spec", "tangent.spec", "privacy.spec", "transfer.spec"},
    "model": {"errors", "cache", "tangent", "component", "composition", "recipe", "backbone"},
}
MAY_IMPORT["estimator"] = {"errors", "tangent", "objective", "solve", "backbone"}
MAY_IMPORT["model_folder"] = {"errors", "tangent", "component", "backbone", "model"}
MAY_IMPORT["cluster"] = {"errors"}
MAY_IMPORT["stages"] = set(MAY_IMPORT)
MAY_IMPORT["view"] = set(MAY_IMPORT)
MAY_IMPORT["terminal"] = {"errors", "names", "stages", "view"}
MAY_IMPORT["cli"] = {"errors", "cache", "cluster", "recipe", "stages", "terminal", "view", "transfer.recipe"}

# Outside library → the only parts that know it.
HOMES = {
    "zarr": {"cache"},
    "obstore": {"cache"},
    "timm": {"backbone"},
    "torchvision": {"backbone"},
    "h5py": {"backbone", "cache"},
    "sklearn": {"backbone.sources", "estimator", "view.embedding"},
    "scipy": {"backbone.sources"},
    "pyarrow": {"stages.sample_files"},
    "dask": {"cluster"},
    "distributed": {"cluster"},
    "typer": {"cli"},
    "rich": {"terminal"},
    "leather": {"transfer.plots"},
    "cryptography": {"signature"},
    "dp_accounting": {"privacy.accountant"},
    "torch": {
        "attribution",
        "cluster.connection",
        "backbone",
        "baselines",
        "tangent",
        "objective",
        "solve",
        "estimator",
        "privacy",
        "component",
        "composition",
        "model",
        "model_folder",
        "transfer",
        "stages",
        "view",
    },
}
# Reading a file with one of these can run code that the file brings along.
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
# What a recipe needs before anything else is known: parsing it must stay fast.
LIGHT = (
    "errors",
    "names",
    "recipe",
    "backbone.spec",
    "tangent.spec",
    "privacy.spec",
    "transfer.spec",
    "transfer.recipe",
    "terminal",
    "cli",
)


def module_name(file: Path, package: Path = PACKAGE) -> str:
    """``cache.store`` for taftcache/cache/store.py; "" for taftcache/__init__.py."""
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def breaches(module: str, source: str) -> list[str]:
    """What ``module`` (its name within taftcache) breaks, a sentence each."""
    tree = ast.parse(source)
    found = [f"line {line}: {text}" for line, text in _unsafe(tree)]
    own = module.partition(".")[0]
    if module and own not in MAY_IMPORT:
        return [*found, f"taftcache.{own} has no place in the order of imports"]
    for line, target in _imported(tree):
        part, _, rest = target.partition(".")
        if part == "taftcache":
            if module and not _allowed(rest, own):
                found.append(f"line {line}: {own} imports taftcache.{rest}")
        elif part in UNSAFE:
            found.append(f"line {line}: {part} can run what it reads")
        elif part in HOMES and not any(_within(module, home) for home in HOMES[part]):
            found.append(
                f"line {line}: {part} belongs to {', '.join(sorted(HOMES[part]))}, not to {module or 'taftcache'}"
            )
    return found


def _allowed(target: str, own: str) -> bool:
    return any(_within(target, part) for part in {own} | MAY_IMPORT[own])


def _within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every module named by an import, wherever it stands: inside functions and for types only, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "taftcache.relative-import"
            elif node.module == "taftcache":
                yield from ((node.lineno, f"taftcache.{alias.name}") for alias in node.names)
            elif node.module:
                yield node.lineno, node.module


def _unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.jit.load", "torch.hub.load"):
            yield node.lineno, f"{ast.unparse(node)} can run what it reads; use safetensors"
        if isinstance(node, ast.ImportFrom) and node.module == "torch" and "load" in {a.name for a in node.names}:
            yield node.lineno, "torch.load can run what it reads; use safetensors"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield node.lineno, "allow_pickle is False, always"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("eval", "exec", "__import__"):
            yield node.lineno, f"{ast.unparse(node.func)} runs text"
