"""Checks the evaluations of a run: which versions are due, and what becomes of them."""

from __future__ import annotations

from headway.testing.audit_terms import Findings, LineTerms


class EvaluationAuditor:
    """Follows the evaluations of a run: which versions are due, and what became of them."""

    def __init__(self, findings: Findings) -> None:
        self._find = findings
        self._due: list[int] = []
        self.running: int | None = None
        self._abandoned: set[int] = set()
        self._scored: set[int] = set()
        self.scores: list[tuple[int, float | None]] = []
        self.skipped = 0

    def publish(self, version: int, every: int) -> None:
        if every and version and version % every == 0:
            self._due.append(version)

    def resume(self, every: int) -> None:
        if self.running is not None:
            self._due.insert(0, self.running)
            self.running = None
        if not every:
            self._due.clear()

    def check_pause(self, what: str, terms: LineTerms) -> None:
        if self.running is not None and not terms["evaluate_in_background"]:
            self._find.wrong("pause", f"{what} during the evaluation of version {self.running}")

    def begin(self, version: int, newest: int, terms: LineTerms) -> None:
        if self.running is not None:
            self._find.wrong("evaluations", f"version {version} is evaluated beside {self.running}")
        is_first = version or terms.told.evaluate_first in (None, True)
        if version in self._due:
            self._due.remove(version)
        elif version in self._scored or version != newest or not is_first:
            self._find.wrong("evaluations", f"version {version} is evaluated, {self._due} are due")
        self.running = version

    def score(self, version: int, value: float | None) -> None:
        if version != self.running:
            self._find.wrong("evaluations", f"version {version} has a score, {self.running} is evaluated")
        self.running = None
        self._scored.add(version)
        self.scores.append((version, value))

    def winner(self, terms: LineTerms) -> int | None:
        """The version whose score reached the target."""
        target = terms.run.get("target_score")
        if target is None:
            return None
        return next((version for version, value in self.scores if value is not None and value >= target), None)

    def skip(self, version: int, newest: int, terms: LineTerms) -> None:
        later = version < newest or any(due > version for due in self._due) or self.winner(terms) is not None
        if version in self._due and later and terms["evaluate_in_background"]:
            self._due.remove(version)
        else:
            self._find.wrong("evaluations", f"version {version} is skipped, {self._due} are due")
        self.skipped += 1

    def abandon(self, version: int, newest: int) -> None:
        """An interruption came before its score. It is said at the end, behind the last checkpoint."""
        if version == self.running:
            self.running = None
        elif version in self._due:
            self._due.remove(version)
        elif version != newest or version in self._scored:
            self._find.wrong("evaluations", f"version {version} is abandoned, {self._due} are due")
        self._abandoned.add(version)

    def check_end(self, newest: int) -> None:
        if self._due or self.running is not None:
            self._find.wrong("evaluations", f"versions {self._due} are due at the end")
        if newest not in self._scored | self._abandoned:
            self._find.wrong("last evaluation", f"version {newest} has no score")
