"""A contract type for import-linter: which module may import which third-party package."""

import sys
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class ThirdPartyContract(Contract):
    """Beside our own packages and the standard library a module imports only what is allowed.

    `allowed` holds lines of the form `module: package package`. For each module the line of its
    longest prefix counts: a line for `a.b` says all that `a.b` and what is below it may import,
    whatever `a` may. Imports inside of functions count too.
    """

    type_name = "third_party"

    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        lines = (line.partition(":") for line in cast("list[str]", self.allowed))
        allowed = {module.strip(): set(packages.split()) for module, _, packages in lines}
        ours = {module for module in graph.modules if not graph.is_module_squashed(module)}
        broken = []
        for module in sorted(ours):
            scope = _longest_prefix(module, allowed)
            for imported in sorted(graph.find_modules_directly_imported_by(module) - ours):
                package = imported.partition(".")[0]
                if package not in sys.stdlib_module_names and package not in allowed.get(scope, ()):
                    lines_ = graph.get_import_details(importer=module, imported=imported)
                    where = ", ".join(str(line["line_number"]) for line in lines_)
                    broken.append(f"{module} imports {package} (line {where}); {scope} may not")
        unused = sorted(scope for scope in allowed if scope not in ours)
        broken += [f"`{scope}` is in the contract but there is no such module" for scope in unused]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(line)


def _longest_prefix(module: str, scopes: dict[str, set[str]]) -> str:
    while module and module not in scopes:
        module = module.rpartition(".")[0]
    return module
