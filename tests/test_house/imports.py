"""Who may import whom: one table, and a checker that reads a module's text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "taftcache"

# Folder, or file beside the folders → what its files may import besides each other. A folder's name does not include
# the folders inside it. Whatever is not named here is a breach.
_TANGENT = {"tangent", "tangent.class_row", "tangent.layers"}
_SOLVE = {"solve", "solve.methods", "solve.inverses", "solve.head", "solve_stats"}
_STORE = {"cache", "cache.format", "cache.read"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "names": set(),
    "expected": {"errors"},
    "rounding": set(),
    "foreign_hdf5": set(),
    "solve_stats": set(),
    "cache.place": {"errors"},
    "cache.format": {"errors", "names", "cache.place"},
    "cache.read": {"errors", "names", "cache.format", "cache.place"},
    "cache.write": {"errors", "names", "cache.format", "cache.place", "cache.read"},
    "cache": {"errors", "names", "foreign_hdf5", "cache.format", "cache.place", "cache.read", "cache.write"},
    "tangent": {"errors", "expected", "tangent.class_row", "tangent.layers"},
    "tangent.class_row": {"errors", "tangent"},
    "tangent.layers": {"errors", "tangent", "tangent.class_row"},
    "objective": {"errors", "tangent"},
    "solve.inverses": {"errors", "tangent", "objective"},
    "solve.head": {"errors", "tangent", "objective", "solve.inverses"},
    "solve.methods": {"errors", "tangent", "objective", "solve_stats", "solve", "solve.inverses", "solve.head"},
    "solve": {"errors", "tangent", "objective", "solve_stats", "solve.inverses", "solve.head", "solve.methods"},
    "privacy": {"errors", "names", "rounding", "objective"} | _TANGENT,
    "baselines": {"errors", "objective"} | _TANGENT,
    "backbone": {"errors", "backbone.cut", "backbone.sources"} | _TANGENT,
    "backbone.cut": {"errors", "backbone"} | _TANGENT,
    "backbone.sources": {"errors", "names", "foreign_hdf5", "backbone"},
    "backbone.forward": {"errors", "backbone", "backbone.sources"} | _TANGENT,
    "recipe_files": {"errors", "names", "cache.format.naming"},
    "recipe_sections": {"errors", "recipe_files", "backbone.files", "tangent.spec"},
    "recipe": {"errors", "recipe_files", "recipe_sections", "expected", "backbone.files", "backbone.spec"}
    | {"tangent.spec", "privacy.spec"},
    "report": {"errors", "cache.place"},
    "consent": {"errors", "recipe", "backbone.files", "cache", "cache.place"},
}
_SOLVING = {"errors", "objective", "backbone", "backbone.cut", "backbone.sources"} | _TANGENT | _SOLVE
MAY_IMPORT["model"] = (
    {"errors", "names", "consent", "recipe", "backbone", "backbone.cut", "backbone.sources"} | _STORE | _TANGENT
)
MAY_IMPORT["model"] |= {"cache.write", "backbone.forward", "solve_stats"}
MAY_IMPORT["teaching"] = (
    {"errors", "names", "objective", "recipe", "recipe_sections", "recipe_files", "backbone", "model"}
    | _STORE
    | _TANGENT
    | _SOLVE
)
MAY_IMPORT["teaching.students"] = MAY_IMPORT["teaching"] | {"teaching", "backbone.sources", "report"}
_BELOW = MAY_IMPORT["teaching.students"] | _SOLVING | {"names", "consent", "model", "privacy"}
_STAGE = _BELOW | {"cache.write", "cache.place", "stages", "teaching.students"}
MAY_IMPORT["stages.extract"] = (
    _STORE | {"errors", "names", "consent", "recipe", "recipe_files", "cache.write", "cache.place", "stages"} | _TANGENT
)
MAY_IMPORT["stages.extract"] |= {"backbone", "backbone.cut", "backbone.forward", "backbone.sources"}
MAY_IMPORT["stages.extract.growth"] = MAY_IMPORT["stages.extract"] | {"stages.extract"}
MAY_IMPORT["estimator_files"] = _SOLVING | {"model", "stages"}
_GROWING = {"stages.extract", "stages.extract.growth"}
MAY_IMPORT["estimator_images"] = {"errors", "backbone", "backbone.cut", "backbone.sources"} | _GROWING | _TANGENT
MAY_IMPORT["estimator_base"] = _SOLVING | _GROWING | {"estimator_files", "estimator_images"}
MAY_IMPORT["estimator"] = MAY_IMPORT["estimator_base"] | {"estimator_base"}
MAY_IMPORT["stages.train"] = _STAGE | {"stages.extract"}
MAY_IMPORT["stages.train.private"] = MAY_IMPORT["stages.train"] | {"stages.train"}
MAY_IMPORT["stages.look"] = MAY_IMPORT["stages.train.private"] | {"stages.train.private", "stages.extract.growth"}
MAY_IMPORT["stages.look.inside"] = MAY_IMPORT["stages.look"] | {"stages.look"}
MAY_IMPORT["stages.forget"] = MAY_IMPORT["stages.look"] | {"stages.look"}
MAY_IMPORT["stages.audit"] = MAY_IMPORT["stages.forget"] | {"stages.forget"}
MAY_IMPORT["stages.files.vectors"] = _STORE | {
    "errors",
    "names",
    "consent",
    "recipe",
    "cache.write",
    "backbone",
    "backbone.forward",
    "backbone.sources",
    "tangent",
    "stages",
    "stages.extract",
    "stages.train",
}
MAY_IMPORT["stages.files"] = MAY_IMPORT["stages.files.vectors"] | {
    "report",
    "cache.place",
    "recipe_sections",
    "model",
    "stages.extract.growth",
    "stages.files.vectors",
    "stages.train.private",
    "stages.look",
}
MAY_IMPORT["stages"] = (
    {"errors", "names", "recipe", "backbone", "backbone.sources", "cache.place", "model"} | _STORE | _TANGENT
)
MAY_IMPORT["stages"] |= {"backbone.forward"} | {f"stages.{room}" for room in ("extract", "train", "look", "forget")}
MAY_IMPORT["remote"] = _STAGE | {"rounding", "backbone.forward", "stages.extract", "stages.train"}
MAY_IMPORT["paper"] = _STAGE | {"baselines", "rounding", "stages.extract", "stages.train", "stages.train.private"}
MAY_IMPORT["view.asked"] = _STORE | {"errors", "names", "report", "stages", "stages.forget", "stages.look", "view"}
MAY_IMPORT["view"] = _STORE | {
    "errors",
    "names",
    "consent",
    "recipe",
    "backbone.spec",
    "backbone.sources",
    "stages",
    "stages.forget",
    "stages.look",
    "stages.look.inside",
    "view.asked",
}
_REPORTS = {"stages", *(f"stages.{room}" for room in ("extract", "train", "train.private", "look", "forget", "audit"))}
_REPORTS |= {"stages.files", "stages.extract.growth", "stages.look.inside", "stages.files.vectors"}
MAY_IMPORT["terminal"] = {"errors", "names", "paper", "view"} | _REPORTS
MAY_IMPORT["cli"] = {
    "recipe_files",
    "consent",
    "privacy.spec",
    "rounding",
    "errors",
    "cache",
    "cache.place",
    "recipe",
    "recipe_sections",
    "remote",
    "paper",
    "teaching",
    "terminal",
    "report",
    "view",
} | _REPORTS

MAY_IMPORT["__main__"] = {"cli", "errors"}

# Outside library → the only rooms that know it, the rooms inside them included.
HOMES = {
    "zarr": {"cache"},
    "obstore": {"cache"},
    "timm": {"backbone"},
    "torchvision": {"backbone"},
    "h5py": {"backbone", "cache", "foreign_hdf5"},
    "sklearn": {
        "backbone.sources",
        "estimator",
        "estimator_base",
        "estimator_files",
        "stages.look.outliers",
        "stages.look.probe",
        "view.embedding",
    },
    "scipy": {"backbone.sources", "report.paired"},
    "pyarrow": {
        "stages.files.sample_files",
        "stages.files.vectors.opening",
        "stages.file_texts",
        "backbone.sources.columns",
    },
    "dask": {"remote", "cache.arrays"},
    "xarray": {"cache.arrays"},
    "huggingface_hub": {"backbone.hub", "model.hub"},
    "onnx": {"model.programs"},
    "onnxruntime": {"model.programs"},
    "distributed": {"remote"},
    "psutil": {"stages.memory"},
    "typer": {"cli"},
    "rich": {"terminal"},
    "matplotlib": {"report.plots"},
    "cryptography": {"stages.signature"},
    "dp_accounting": {"privacy.accountant"},
    "torch": {
        "backbone",
        "baselines",
        "tangent",
        "objective",
        "solve",
        "estimator",
        "estimator_base",
        "estimator_files",
        "estimator_images",
        "privacy",
        "model",
        "teaching",
        "stages",
        "remote",
        "paper",
    },
}
# Files (or whole rooms) that import inside functions, and why. Everywhere else imports stand at the top.
LATE: dict[str, str] = {
    "__main__": "Ctrl-C is answered in words while the commands are loaded",
    "cli": "`--help` and completion start without torch",
    "estimator_files": "a head of features is saved and loaded without timm",
    "estimator_base": "timm takes as long as all else, and features are fitted without it",
    "view.asked": "the page is served before torch and scikit-learn are loaded",
    "view.atlas": "the page is served before torch is loaded",
    "view.embedding": "scikit-learn takes a second to start, and the page is served before",
    "view.pictures": "a source of images may load timm, and the page is served before",
    "terminal.console": "rich's bars, which only a terminal shows",
    "cache.arrays": "Dask and xarray are optional: a store is read without them",
    "cache.place.bucket": "obstore is optional: a store in a folder does without it",
    "cache.read.shard": "zarr takes a second to start, and only tools ask for a shard's group",
    "stages.files.verification": "`verify` starts without torch, which only a repair needs",
    "backbone.sources.columns": "pyarrow is optional: CSV files do without it",
    "backbone.sources.digits": "scikit-learn takes a second to start, which other sources need not wait for",
    "backbone.sources.published": "scipy takes a second to start, and one of seven datasets needs it",
    "backbone.still_there": "a folder is looked at without timm, which other sources load",
    "model.component": "timm takes as long to start as torch, and only a functional tail needs it",
    "model.programs": "onnx and onnxruntime are optional: other forms of a model do without them",
    "privacy.accountant": "dp-accounting is optional: private training alone needs it",
    "report.paired": "scipy's statistics take a second to start, which a report without findings need not wait for",
    "report.plots": "matplotlib is optional: reports without plots do without it",
    "stages.files.sample_files": "pyarrow is optional: npz and the projector's tables do without it",
    "stages.files.vectors.opening": "pyarrow is optional: npy and npz files do without it",
    "stages.file_texts": "pyarrow is optional: of other files an audit finds ids without it",
    "stages.look.probe": "scikit-learn takes a second to start, and only a comparison needs it",
    "stages.look.inside.samples": "manifests are shown without torch; what models say of rows needs it",
    "stages.signature": "cryptography is an optional library",
    "stages.writing": "`--help` asks for it, and a look for a store loads numpy",
}
# Reading a file with one of these can run code that the file brings along.
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
# What a recipe needs before anything else is known: parsing it must stay fast.
LIGHT = (
    "errors",
    "names",
    "expected",
    "rounding",
    "recipe_files",
    "recipe_sections",
    "recipe",
    "backbone.files",
    "backbone.spec",
    "tangent.spec",
    "privacy.spec",
    "teaching.spec",
    "teaching.recipe",
    "terminal",
    "cli",
)


parsed = cache(ast.parse)  # three tests look at every file


def module_name(file: Path, package: Path = PACKAGE) -> str:
    """``cache.store`` for taftcache/cache/store.py; "" for taftcache/__init__.py."""
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The row of the table that a module belongs to: its folder, or itself where it lies beside the folders."""
    parts = module.split(".")
    places = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((place for place in places if place in MAY_IMPORT), parts[0])


def breaches(module: str, source: str) -> list[str]:
    """What ``module`` (its name within taftcache) breaks, a sentence each."""
    tree = parsed(source)
    found = [f"line {line}: {text}" for line, text in _unsafe(tree)]
    own = room_of(module)
    if module and own not in MAY_IMPORT:
        return [*found, f"taftcache.{own} has no place in the order of imports"]
    for line, target in _imported(tree):
        part, _, rest = target.partition(".")
        if part == "taftcache":
            if module and rest and not _allowed(rest, own):
                found.append(f"line {line}: {own} imports taftcache.{rest}")
        elif part in UNSAFE:
            found.append(f"line {line}: {part} can run what it reads")
        elif part in HOMES and not any(_within(module, home) for home in HOMES[part]):
            found.append(
                f"line {line}: {part} belongs to {', '.join(sorted(HOMES[part]))}, not to {module or 'taftcache'}"
            )
    return found


def _allowed(target: str, own: str) -> bool:
    """Whether files of ``own`` may import ``target``: by its room, or by its own name where the table has that."""
    allowed = {own} | MAY_IMPORT[own]
    return room_of(target) in allowed or any(_within(target, file) for file in allowed - MAY_IMPORT.keys())


def arrows(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Module → the modules of the package that it imports, wherever the import stands."""
    modules = {module_name(file): file for file in package.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, file in modules.items():
        imported = (target for _, target in _imported(parsed(file.read_text(encoding="utf-8"))))
        targets = {t.removeprefix("taftcache.") for t in imported if _within(t, "taftcache")}
        names = {t if t in modules else t.rpartition(".")[0] for t in targets}
        found[module] = {name for name in names if name in modules and name != module}
    return found


def imported_libraries(source: str) -> set[str]:
    """The outermost packages that a file imports, wherever the imports stand."""
    return {target.partition(".")[0] for _, target in _imported(parsed(source))}


def late_imports(module: str, source: str) -> list[str]:
    """Imports inside functions of a file that is not among ``LATE``, a sentence each."""
    if any(_within(module, place) for place in LATE):
        return []
    tree = parsed(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = {n.lineno for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)}
    return [f"line {line}: an import inside a function" for line in sorted(lines)]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that import each other, by any way round."""
    found = []
    left = {node: {t for t in targets if t in graph} for node, targets in graph.items()}
    while ends := [node for node, targets in left.items() if not targets & left.keys()]:
        for node in ends:
            del left[node]
    while left:
        start = min(left)
        reach, back = _reached(left, start), {n for n in left if start in _reached(left, n)}
        group = {start} | (reach & back)
        if len(group) > 1:
            found.append(sorted(group))
        left = {node: targets - group for node, targets in left.items() if node not in group}
    return found


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for target in graph.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


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
            elif node.module and node.module.partition(".")[0] == "taftcache":
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
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
