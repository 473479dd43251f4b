"""The findings of audits in words for a report; passing an audit is never called a proof.

**Privacy:** findings are not in the claim; they were made with the data and are shown because whoever made them kept them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sordino.accounting.meaning import percent


def describe_audits(kept: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns a name and a sentence of the report for each known kind of audit, in a fixed order; malformed findings
    are left out.

    >>> describe_audits({"replay": {"passed": True, "checked": 20, "run_steps": 640, "digests": 612, "chain": "9f"}})[0][0]
    'Replay'
    """
    # Findings come from a file that anybody may have edited; one that cannot be read is left out.
    descriptions = []
    for kind, (name, describe) in _DESCRIPTIONS.items():
        table = kept.get(kind)
        if isinstance(table, Mapping):
            try:
                descriptions.append((name, describe(table)))
            except (KeyError, TypeError, ValueError):
                continue
    return descriptions


def _describe_replay(table: Mapping[str, Any]) -> str:
    """Returns what a replay audit found, in words for a report."""
    n = int(table["checked"])
    checked = (
        f"{n} of {int(table['run_steps']):,} steps, chosen by a fresh coin, were run again and taken apart, and the "
        f"parameters of {int(table['digests']):,} compared with those entered in the ledger, which ends in {table['chain']}"
    )
    if not table["passed"]:
        return f"{checked}. They are not as entered: {_first_finding(table)}"
    at = percent(0.9**n)
    return f"{checked}. All are as entered: a run of which a tenth of the steps is bad passes with probability {at}."


def _describe_selftest(table: Mapping[str, Any]) -> str:
    """Returns what the selftest, an audit of the run's own mechanism, found, in words for a report."""
    exact, tests = int(table["exact"]), int(table["statistical"])
    tried = f"{exact} exact checks and {tests} statistical tests of this run's own mechanism"
    if not table["passed"]:
        return f"{tried} found: {_first_finding(table)}"
    return f"{tried} found nothing. That is no proof; it says that these mistakes are not there."


def _describe_one_run_audit(table: Mapping[str, Any]) -> str:
    """Returns the lower bound that a one-run audit with canaries showed, in words for a report."""
    # The strongest lower bound is the one that counts.
    best = max(table["measured"], key=lambda one: float(one["lower_own"]))
    claimed = f"ε = {float(table['epsilon']):.3f} at δ = {float(table['delta']):g}"
    made = f"a copy, trained once with {int(best['canaries'])} {best['kind']} canaries in it by fair coins"
    right = f"{int(best['right'])} of {int(best['guesses'])} guesses right ({best['access']})"
    shown = f"so ε is at least {float(best['lower_own']):.3f} with 95 % confidence"
    said = f"{made}: {right}, {shown}; claimed for the copy was {claimed}"
    if not table["passed"]:
        return f"{said}. That contradicts the claim."
    return f"{said}. A lower bound below the claim is no proof that it holds."


def _describe_membership_inference(table: Mapping[str, Any]) -> str:
    """Returns how well the best membership inference attack did, in words for a report's audits, with the most that the
    claim allows.
    """
    # At 1 % false positives, where attacks are usually compared.
    place = list(table["rates"]).index(0.01)
    name = max(table["attacks"], key=lambda one: float(table["attacks"][one][place]))
    share, tried = float(table["attacks"][name][place]), ", ".join(table["attacks"])
    best_result = f"the best of {tried} finds {share:.2%} of {int(table['members'])}"
    ceiling = table["ceiling"]
    ceiling_text = "" if ceiling is None else f"; the claim allows any attack {percent(float(ceiling[place]))} at most"
    return f"{best_result} members at 1 % false positives ({name}){ceiling_text}. A risk report: others may reach more."


def _first_finding(table: Mapping[str, Any]) -> str:
    """Returns the first finding, and how many more there are."""
    findings = [": ".join(map(str, one)) if isinstance(one, list) else str(one) for one in table["found"]]
    return findings[0] + (f"; and {len(findings) - 1} more" if len(findings) > 1 else "")


_DESCRIPTIONS: dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "replay": ("Replay", _describe_replay),
    "selftest": ("Selftest", _describe_selftest),
    "run": ("One training run with canaries", _describe_one_run_audit),
    "mia": ("Membership inference", _describe_membership_inference),
}
