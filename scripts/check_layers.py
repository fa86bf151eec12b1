#!/usr/bin/env python3
"""Checks the floors: a file includes headers of lower floors and of its own part only.

The picture is in docs/architecture.md; a breach fails the build.
  check_layers.py [ROOT]
"""
import pathlib
import re
import sys

# part (folder below src/) -> floor
FLOOR = {"base": 0, "config": 1, "graph": 2, "io": 2, "cluster": 2, "ops": 3, "backend": 4, "data": 4,
         "layers": 5, "optim": 5, "models": 6, "strategy": 6, "export": 6, "train": 7, "cli": 8}
# public header -> the part that owns it
OWNER = {"base": "base", "mem": "base", "text": "base", "file": "base", "rng": "base", "thread": "base",
         "tensor": "base", "config": "config", "graph": "graph", "ops": "graph", "io": "io", "cluster": "cluster",
         "backend": "backend", "dataset": "data", "layers": "layers", "optimizer": "optim", "model": "models",
         "strategy": "strategy", "export": "export", "train": "train", "report": "train"}
# each library behind one folder
LIBRARY = {"yaml": ("config",), "zlib": ("io", "train")}


def part_of(path, root):
    relative = path.relative_to(root)
    if relative.parts[0] == "include":
        return OWNER.get(path.stem)
    return "cli" if relative.parts == ("src", "main.c") else relative.parts[1]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    breaches, names = [], {}
    files = sorted(p for d in ("src", "include") for p in (root / d).rglob("*") if p.suffix in (".c", ".h", ".def", ".cu", ".cc"))
    for path in files:
        part = part_of(path, root)
        where = path.relative_to(root)
        if part not in FLOOR:
            breaches.append(f"{where}: belongs to no part of the table in scripts/check_layers.py")
            continue
        if path.suffix != ".h" or "include" not in where.parts:
            if path.name in names:
                breaches.append(f"{where}: the file name is used twice, also by {names[path.name]}")
            names[path.name] = where
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
            if not match:
                continue
            name = match.group(1)
            if name.startswith("trainer/"):
                owner = OWNER.get(pathlib.Path(name).stem)
                if owner is None:
                    breaches.append(f"{where}:{number}: {name} belongs to no part")
                elif owner != part and FLOOR[owner] >= FLOOR[part]:
                    breaches.append(f"{where}:{number}: floor {FLOOR[part]} ({part}) includes {name} of floor {FLOOR[owner]} ({owner})")
            elif "/" in name and name.split("/")[0] in FLOOR:
                owner = name.split("/")[0]
                if owner != part and FLOOR[owner] >= FLOOR[part]:
                    breaches.append(f"{where}:{number}: floor {FLOOR[part]} ({part}) includes {name} of floor {FLOOR[owner]}")
            stem = pathlib.Path(name).stem
            if stem in LIBRARY and not name.startswith("trainer/"):
                if part not in LIBRARY[stem]:
                    breaches.append(f"{where}:{number}: {name} may be used in {', '.join(LIBRARY[stem])} only")
    for breach in breaches:
        print(breach)
    print(f"floors: {len(files)} files, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
