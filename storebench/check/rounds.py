"""Which cells of two interleaved sides get the next round, so that as many as possible are decided within a budget."""

from collections.abc import Iterable, Mapping

from storebench.analysis.comparison import MIN_ROUNDS
from storebench.record.schema import Cell
from storebench.run.scenario import Scenario


class RoundPlan:
    """Plans from what rounds took."""

    def __init__(self, cells: Iterable[Cell], scenario: Scenario) -> None:
        self._priorities, self._most = scenario.priorities, scenario.replicates
        self._fewest = min(MIN_ROUNDS, self._most)
        self._start_s = 0.0
        self.rounds = dict.fromkeys(cells, 0)
        self.took_s = dict.fromkeys(self.rounds, 0.0)
        """Seconds that a round of each cell should take."""

    def round_s(self, cells: Iterable[Cell]) -> float:
        return self._start_s + sum(self.took_s[cell] for cell in cells)

    def next(self, left_s: float | None) -> list[Cell]:
        """Return the cells of the next round, which have had as many rounds each; none at the end.

        In the time that is left, as many cells as fit get their fewest rounds, those of the lowest priority number first
        and one in any case; then all that have them get more.
        """
        if not any(self.rounds.values()):
            return list(self.rounds)
        left_s = float("inf") if left_s is None else left_s
        must = max(self.rounds.values()) < self._fewest
        for number in range(self._fewest - 1, 0, -1):
            fitting: list[Cell] = []
            for cell in sorted(self._after(number), key=lambda cell: self._priorities[cell]):
                total_s = (self._fewest - number) * self.round_s([*fitting, cell])
                if (must and not fitting) or total_s <= left_s:
                    fitting.append(cell)
            if fitting:
                return fitting
        going = self._after(min(number for number in self.rounds.values() if number >= self._fewest))
        return going if self.rounds[going[0]] < self._most and self.round_s(going) <= left_s else []

    def add(self, start_s: float, took_s: Mapping[Cell, float]) -> None:
        """Add the round of some cells, after which the others are taken to be as much faster or slower as these."""
        before_s = sum(self.took_s[cell] for cell in took_s)
        change = sum(took_s.values()) / before_s if before_s else 1.0
        self._start_s = start_s
        for cell, expected_s in self.took_s.items():
            self.took_s[cell] = took_s.get(cell, change * expected_s)
            self.rounds[cell] += cell in took_s

    def ended(self) -> list[Cell]:
        """Return the cells for whose fewest rounds there was no time."""
        return [cell for cell, number in self.rounds.items() if number < self._fewest]

    def _after(self, number: int) -> list[Cell]:
        return [cell for cell, done in self.rounds.items() if done == number]
