"""Every method and sampler of the library as a script: flat.py with one noun swapped, two where a method is two nouns.

    python examples/variants.py                   what there is
    python examples/variants.py psac              run it
    python examples/variants.py psac --source     print it, to go on from

The nouns are those that the library's own files declare (`sordino/registry.py`), so that a new one is here by itself.
"""

import re
import sys
from pathlib import Path

from sordino.app.runs.methods import DECLARATIONS
from sordino.registry import Example

FLAT = Path(__file__).with_name("flat.py").read_text()
EXAMPLES: dict[str, Example] = {one.name: one for declared in DECLARATIONS for one in declared.list_examples()}


def source(example: Example) -> str:
    """The script: flat.py with another docstring, query and sampler."""
    head = f'"""{example.about[0].upper()}{example.about[1:]}."""'
    text = re.sub(r'\A""".*?"""', lambda _: head, FLAT, flags=re.DOTALL)
    for name, code in (("query", example.query), ("sampler", example.sampler)):
        text = re.sub(rf"^{name} = .*$", lambda _, name=name, code=code: f"{name} = {code}", text, flags=re.MULTILINE)
    return text


def main(arguments: list[str]) -> int:
    """List, print or run."""
    names = [argument for argument in arguments if argument != "--source"]
    if not names:
        width = max(map(len, EXAMPLES))
        for name, example in sorted(EXAMPLES.items()):
            print(f"{name:<{width}}  {example.about}")
        return 0
    if names[0] not in EXAMPLES:
        print(f"{names[0]}: there is {', '.join(sorted(EXAMPLES))}", file=sys.stderr)
        return 2
    script = source(EXAMPLES[names[0]])
    if "--source" in arguments:
        print(script, end="")
    else:
        exec(compile(script, f"<{names[0]}>", "exec"), {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
