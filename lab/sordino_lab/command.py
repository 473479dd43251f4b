"""`sordino lab`: every figure and table of the sources, from one command each."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from sordino.app.cli.help_page import HelpPage
from sordino_lab import pages, result_store
from sordino_lab.catalogue import choose_experiments, experiments
from sordino_lab.experiment import FAILS, HOLDS, UNTESTED, ExperimentSize, read_outcome

_PAGE = "index.html"
_KNOWN_WIDTH = len("known (full, 10 of 24 curves)")


@dataclass(frozen=True)
class Command:
    """Figures and tables of the five sources: list them, run them, check them against what was published, make the page."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("A first look, within a minute, and the page with all figures:", "sordino lab run seconds"),
            ("One figure, smaller than the source's, in ./lab:", "sordino lab run sorted-mnist-fixed --quick"),
            ("An idea of your own beside the published ones:", "sordino lab run smooth.py --quick"),
            ("Everything at the sources' own size, over days:", "sordino lab queue run"),
            ("From another terminal, how far it is:", "sordino lab queue status"),
            ("Keep the processors for yourself until `sordino lab queue resume`:", "sordino lab queue pause"),
        ),
        notes=(
            "Ctrl-C ends any of these within seconds. What was finished is kept, and the same command goes on from there.",
        ),
    )
    action: Annotated[Literal["list", "run", "check", "page", "show", "draw", "queue"], tyro.conf.Positional]
    """list the ids; run ids; check numbers and findings; make the page; show what is known of an id; draw ids from
    trainings at the source's size that are there; queue run, status, pause or resume: train everything so."""
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Ids, a source (000 … 004), files of your own (FILE.py), or `seconds`: all that take seconds, for a first look; after
    queue: run, status, pause, resume."""
    all: bool = False
    """Every id."""
    quick: bool = False
    """Within a minute or so each; what is reduced is written on the figure."""
    full: bool = False
    """The source's own setting; hours, for CIFAR-10."""
    out: Path = result_store.OUT
    """Where figures, JSON and the page go."""
    processes: int = 2
    """Side by side, one thread each."""
    anew: bool = False
    """Run figures again that are there already; trainings that are kept are used all the same."""
    browser: bool = True
    """Open the page when it is made."""
    trainings: Path | None = None
    """Of queue: where finished trainings go; by default into the cache."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out an action of the command `sordino lab` and returns the exit code."""
        # The two sizes exclude each other; to prefer one silently could cost hours or give a figure that is too small.
        if self.quick and self.full:
            raise ValueError("--quick and --full: give one of them, or neither for the size between")
        if self.processes < 1:
            raise ValueError(f"processes={self.processes}: need 1 or more")
        actions = {
            "list": self._list,
            "run": self._run,
            "check": self._check,
            "page": self._page,
            "show": self._show,
            "draw": self._draw,
            "queue": self._queue,
        }
        return actions[self.action]()

    @property
    def _size(self) -> ExperimentSize:
        if "seconds" in self.names and not self.full:
            return ExperimentSize.QUICK
        return ExperimentSize.QUICK if self.quick else ExperimentSize.FULL if self.full else ExperimentSize.MIDDLE

    def _list(self) -> int:
        """Carries out `sordino lab list`: prints ids with their source, figure and title, and which results are there."""
        # Without names all experiments are listed.
        some = choose_experiments(self.names) if self.names else list(experiments().values())
        if self.json:
            print(json.dumps([one.facts() for one in some], ensure_ascii=False))
            return 0
        # Results say which figures are there already, and at which size, so that nobody runs them twice by mistake.
        there = result_store.read_results(self.out)
        width = max(len(one.id) for one in some)
        for one in some:
            known = f"known ({result_store.describe_size(there[one.id])})" if one.id in there else ""
            print(f"{one.id:<{width}}  {one.source}  {known:<{_KNOWN_WIDTH}} {one.figure}: {one.title}")
        print(
            f"\n{len(some)} figures; run one with `sordino lab run {some[0].id} --quick`, a first look with `sordino "
            "lab run seconds`"
        )
        return 0

    def _run(self) -> int:
        """Carries out `sordino lab run`: runs experiments and says what came of each."""
        from sordino_lab.runner import run_experiments
        from sordino_lab.workers import WorkerFailed

        some = choose_experiments(self.names, everything=self.all)
        say = (lambda text: print(text, file=sys.stderr, flush=True)) if not self.json else (lambda text: None)
        # Progress goes to standard error, so that standard output has the results alone.
        try:
            results = run_experiments(some, self._size, self.out, processes=self.processes, anew=self.anew, say=say)
        except WorkerFailed as error:
            print(f"sordino lab: {error}; what was finished is kept", file=sys.stderr)
            return 1
        if self.json:
            print(json.dumps({one["id"]: _shorten(one) for one in results}, ensure_ascii=False))
        else:
            for one in results:
                print(f"{one['id']}: {_count_verdicts(one)}; {self.out / (one['id'] + '.png')}")
        # One of these makes many figures at once, which are easier to look at on a page than as files.
        if "seconds" in self.names or self.all:
            return self._page()
        return 0

    def _draw(self) -> int:
        """Carries out `sordino lab draw`: draws figures at the source's size from trainings that are there; says what
        is missing of the others.
        """
        from sordino_lab.runner import draw_from_trainings

        # Drawing trains nothing, so without names everything can be tried in a short time.
        some = choose_experiments(self.names, everything=self.all or not self.names)
        for one in some:
            print(f"{one.id}: {draw_from_trainings(one, self.out)}", flush=True)
        return 0

    def _queue(self) -> int:
        """Carries out `sordino lab queue`: works off the queue, or says or changes its state."""
        from sordino_lab.queue import Queue, last_folders

        # A second process may ask for the state or a pause while the queue works.
        wish = self.names[0] if self.names else "status"
        if wish not in ("run", "status", "pause", "resume") or len(self.names) > 1:
            raise ValueError(f"queue {' '.join(self.names)}: there is run, status, pause and resume")
        # The state is in files, so any process can look at the queue or pause it.
        folder = result_store.cache_folder() / "queue"
        queue = Queue(folder, self.trainings or result_store.cache_folder(), self.out)
        # The status is that of the queue that ran last, wherever it was told to put what it makes.
        if wish == "status" and self.trainings is None and (before := last_folders(folder)) is not None:
            queue = Queue(folder, *before)
        # The exit code tells a script whether a job failed, so that it need not read what was printed.
        if wish == "run":
            return 1 if queue.run(self.processes, lambda text: print(text, flush=True)) else 0
        if wish == "status":
            print(queue.status())
        elif wish == "pause":
            # The folder may be missing: a pause can be asked for before the first job was ever begun.
            folder.mkdir(parents=True, exist_ok=True)
            queue.pause_file.touch()
            print("nothing works from now on; `sordino lab queue resume` lets the queue go on")
        else:
            # Resuming a queue that is not paused is no error; the state that was asked for is there.
            queue.pause_file.unlink(missing_ok=True)
            print("resumed")
        return 0

    def _check(self) -> int:
        """Carries out `sordino lab check`: prints numbers beside the published ones and findings with their verdicts."""
        there = result_store.read_results(self.out)
        # An experiment of one's own that was run is known by its id too, which is what its result is called.
        known = [name for name in self.names if name in there]
        asked = [name for name in self.names if name not in there]
        chosen = choose_experiments(asked) if asked else []
        names = [*known, *(one.id for one in chosen)] if self.names else list(there)
        # A check of something that was never run would look as if it had passed.
        missing = [one for one in chosen if one.id not in there]
        if missing:
            raise ValueError(
                f"{', '.join(one.id for one in missing)}: not run yet; "
                f"`sordino lab run {missing[0].file or missing[0].id} --quick`"
            )
        if self.json:
            print(json.dumps({name: _shorten(there[name]) for name in names}, ensure_ascii=False))
            return 0
        for name in names:
            _print_check(there[name])
        # Untested findings are counted apart, so that they are not taken for findings that hold.
        counts = {
            verdict: sum(f.verdict == verdict for name in names for f in read_outcome(there[name]).findings)
            for verdict in (HOLDS, FAILS, UNTESTED)
        }
        print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        return 0

    def _page(self) -> int:
        """Carries out `sordino lab page`: makes the page and opens it in a browser where there is a terminal."""
        # A browser is opened only where a person is at the terminal.
        made = pages.write_html(self.out, self.out / _PAGE)
        print(
            json.dumps({"page": str(made)}) if self.json and self.action == "page" else f"page: {made}",
            file=sys.stderr if self.json and self.action != "page" else sys.stdout,
        )
        if self.browser and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(made.resolve().as_uri())
        return 0

    def _show(self) -> int:
        """Carries out `sordino lab show`: prints what is known of ids, namely facts, numbers, findings, notes and
        commands.
        """
        there = result_store.read_results(self.out)
        for one in choose_experiments(self.names, everything=self.all):
            if self.json:
                print(json.dumps(there.get(one.id) or one.facts(), ensure_ascii=False))
                continue
            print(
                f"{one.id}: {one.title}\n  {one.shows}\n  source {one.source}, {one.figure}, lines {one.lines}\n  "
                f"setting: {one.setting}"
            )
            print(
                f"  reduced: {one.reduced}\n  made of: {', '.join(one.nouns)}"
                + (f"\n  in the source: {one.terms}" if one.terms else "")
            )
            # Numbers, notes and commands exist only for what was run; the facts above are known of every figure.
            if one.id in there:
                _print_check(there[one.id])
                for text in there[one.id]["notes"]:
                    print(f"  note: {text}")
                for command in there[one.id]["commands"]:
                    print(f"  {command}")
                if there[one.id]["commands"]:
                    print("  (seed 0; further seeds of a curve are `--seed 1 --init-seed 1` and so on)")
        return 0


def describe_recipes() -> dict[str, str]:
    """Returns what the command `sordino lab` adds to `sordino recipes`: what the lab measured of each recipe of the
    sources, in words.
    """
    from sordino_lab.scoreboard import describe_recipes as describe

    return describe()


def _shorten(result: dict[str, Any]) -> dict[str, Any]:
    """Returns numbers and findings of a result, for the JSON that the command prints."""
    outcome = read_outcome(result)
    return {
        "size": result["size"],
        "seconds": result["seconds"],
        "compared": [
            {"what": c.what, "ours": c.ours, "spread": c.spread, "published": c.published, "difference": c.difference}
            for c in outcome.compared
        ],
        "findings": [
            {"says": f.says, "line": f.line, "verdict": f.verdict, "because": f.because} for f in outcome.findings
        ],
    }


def _count_verdicts(result: dict[str, Any]) -> str:
    """Returns how many findings of a result hold, fail or are untested, in words for the command `sordino lab run`."""
    # A figure without findings is a drawing, which has nothing to judge.
    verdicts = [one.verdict for one in read_outcome(result).findings]
    said = [f"{verdicts.count(v)} {v}" for v in (HOLDS, FAILS, UNTESTED) if v in verdicts]
    return ", ".join(said) or "a drawing"


def _print_check(result: dict[str, Any]) -> None:
    """Prints, for the command `sordino lab check`, the numbers of a result beside the published ones, and its findings."""
    outcome = read_outcome(result)
    print(f"\n{result['id']} ({result_store.describe_size(result)}, {result['seconds']:g} s)")
    for one in outcome.compared:
        # A number that was not reached is a dash, not zero, and the spread is left out where one seed has none.
        ours = "–" if one.ours is None else f"{one.ours:.4g}" + (f" ± {one.spread:.2g}" if one.spread else "")
        gap = "" if one.difference is None else f", {one.difference:+.3g}"
        print(f"  {one.what}: {ours}{one.unit and ' ' + one.unit}; published {one.published:g} ({one.where}){gap}")
    for finding in outcome.findings:
        print(f"  {finding.verdict}: “{finding.says}” ({finding.line}): {finding.because}")
