"""The contest of trainers with and without games: paired accuracies, the answer, and the drawing."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from storebench.report.catalog import plots
from storebench.report.cells import summarise
from storebench.report.facts import Facts, derive
from storebench.report.frame import to_frame
from storebench.report.plots.selection import Selection
from storebench.report.plots.tournament import QUESTION, drawn
from storebench.report.texts.headline import QUESTION as STORES_QUESTION
from storebench.report.texts.headline import RANKS_QUESTION, headline
from storebench.report.texts.rank_answers import rank_steps_answer
from storebench.report.texts.tournaments import contest, tournament_answer
from storebench.results import Record
from tests.support.planted import make_record
from tests.support.planted_roofline import curve_records
from tests.support.planted_trainers import contest as planted
from tests.support.planted_trainers import trainers_record


def facts_of(*records: Record) -> Facts:
    return derive(summarise(to_frame((record, Path("run/records.jsonl")) for record in records)))


def answer(*records: Record) -> str:
    found = contest(facts_of(*records))
    assert found is not None
    return tournament_answer(found)


def test_a_gain_is_said_with_its_interval_over_seeds() -> None:
    said = answer(*planted([0.010, 0.012, 0.008, 0.011, 0.009]))
    assert said == (
        "Yes: tournaments change the test accuracy of the best trainer by +1.00 percentage points [+0.80, +1.20] "
        "(5 seeds, paired, a single interval; 91.00% with, 90.00% without)."
    )


def test_a_gain_that_is_not_above_0_is_said_not_to_be() -> None:
    said = answer(*planted([0.010, -0.012, 0.008, -0.001, 0.002]))
    assert said.startswith(
        "Not shown: tournaments change the test accuracy of the best trainer by +0.14 percentage"
    )
    assert "which is not above 0 (5 seeds, paired, a single interval;" in said


def test_a_loss_is_said_to_be_one() -> None:
    said = answer(*planted([-0.010, -0.012, -0.008]))
    assert said.startswith(
        "No, worse: tournaments change the test accuracy of the best trainer by -1.00 percent"
    )


def test_seeds_without_a_control_and_replicates_do_not_count() -> None:
    repeated = planted([0.02, 0.03], replicate=1)
    found = contest(facts_of(*planted([0.01, 0.03]), *repeated, trainers_record(0.99, seed=7)))
    assert found is not None
    assert [round(gain, 6) for gain in found.gains] == [1.5, 3.0]
    assert len(found.cells) == 3


def test_a_seed_whose_last_epoch_is_missing_on_one_side_does_not_count() -> None:
    """Its accuracy after the first epoch would be held against one after the second."""
    epochs = [planted([0.01, 0.03, 0.02], epochs=2, epoch=number) for number in range(2)]
    shortened = [*epochs[0], *epochs[1][1:]]
    found = contest(facts_of(*shortened))
    assert found is not None
    assert [round(gain, 6) for gain in found.gains] == [3.0, 2.0]


def test_one_seed_proves_nothing() -> None:
    assert answer(*planted([0.02])).startswith("One seed is not enough: ")


def test_trainers_without_a_control_are_not_judged() -> None:
    said = answer(trainers_record(0.9))
    assert said == "Unknown: the same trainers were not measured without tournaments."


@pytest.mark.parametrize(
    ("gains", "begins"),
    [
        (
            [0.010, 0.012, 0.008],
            "tournaments make the best trainer better; they change its test accuracy by +1.00",
        ),
        (
            [-0.010, -0.012, -0.008],
            "tournaments make the best trainer worse; they change its test accuracy by -1.00",
        ),
        ([0.010, -0.012], "tournaments are not shown to make the best trainer better; they change its test"),
        ([0.02], "tournaments are not shown to make the best trainer better; they change its test"),
    ],
)
def test_a_page_of_trainers_begins_with_what_tournaments_change(gains: list[float], begins: str) -> None:
    first, second = headline(facts_of(*planted(gains))).sentences
    assert first.text.startswith(f"ImageNet, 4,000 images, 4 trainers: {begins}")
    assert second.text == (
        "Games read 1.25 held-out samples per training sample, send 7.81 KiB per trainer and game, and take 42% of the"
        " time of training and games together."
    )


def test_a_page_asks_the_question_that_its_first_sentence_answers() -> None:
    assert headline(facts_of(*planted([0.01, 0.02]))).question == RANKS_QUESTION
    assert headline(facts_of(make_record("lmdb"))).question == STORES_QUESTION
    both = headline(facts_of(*curve_records("png", 560.0), *planted([0.01, 0.02])))
    assert "feed accelerators" in both.sentences[0].text
    assert both.question == STORES_QUESTION, "what stores feed is told first"


def test_the_plot_of_games_leads_the_page_and_no_exchange_is_missed() -> None:
    facts = facts_of(*planted([0.01, 0.02]))
    drawn_plots = plots(facts, "imagenet")
    assert drawn_plots[0].question == QUESTION
    said = rank_steps_answer(facts.cells, facts.claims).text
    assert said == "Each trainer has one rank, so no gradients are exchanged."


def test_a_page_without_tournaments_says_nothing_about_them() -> None:
    assert "tournament" not in headline(facts_of(trainers_record(0.9, every=0))).answer


def test_records_without_games_make_no_plot() -> None:
    assert list(drawn(Selection(facts=facts_of(trainers_record(0.9, every=0))))) == []


def test_the_plot_shows_scores_above_and_winners_below() -> None:
    [plot] = drawn(Selection(facts=facts_of(*planted([0.01, 0.02]))))
    figure = plot.ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    above, below = figure.axes
    assert (above.get_ylabel(), below.get_ylabel()) == ("score on held-out samples (%)", "trainer")
    assert below.get_xlabel() == "step"
    assert [line.get_label() for line in above.get_lines()] == [f"trainer {number}" for number in range(4)]
    assert above.get_lines()[3].get_xdata().tolist() == [20, 40, 60, 80, 100]
    assert [tick.get_text() for tick in below.get_yticklabels()] == ["0", "1", "2", "3"]
    assert len(below.get_lines()) == 5 * 4
    sizes = {line.get_markersize() for line in below.get_lines()}
    assert len(sizes) == 2, "a network that came from the partner is larger"
    assert QUESTION in [legend.get_title().get_text() for legend in figure.legends]
