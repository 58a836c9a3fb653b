"""The page of a training as text: what it draws, what it keeps out, and that names are text."""

import re

from plots.simulated import simulated

from fcal.reports.training import training_page

HOSTILE = "</script><script>alert('x')</script>"
HISTORY = [
    {"epoch": e, "step": 9 * e, "learning_rate": 0.1, "train/loss": 2.0 / (e + 1), "validation/nll": 1.0 + (e - 3) ** 2}
    for e in range(6)
]


def titles(text):
    return re.findall("<h2>(.*?)</h2>", text)


def test_page_has_curves_of_what_was_logged_with_the_kept_epoch_marked():
    text = training_page(HISTORY, best_epoch=3, config="seed = 0", report=simulated(n=200))
    learning = text.split("<h2>Learning</h2>")[1].split("</section>")[0]
    assert re.findall("<h3>(.*?)</h3>", learning) == ["loss", "NLL"]
    assert "epoch 4, whose weights were kept" in learning
    assert '<th scope="row">validation/nll</th><td class="number">1.000</td>' in learning
    assert titles(text) == ["Learning", "Pictures", "Numbers", "Glossary", "Config", "Made by"]


def test_page_of_a_repaired_run_shows_both_evaluations():
    text = training_page(HISTORY, best_epoch=3, config="", report=simulated(), before=simulated("over-confident"))
    assert titles(text)[:3] == ["Learning", "Before and after", "Pictures"]


def test_page_of_a_network_without_error_bars_has_its_curves():
    text = training_page(HISTORY, best_epoch=5, config="")
    assert "without error bars" in text
    assert titles(text) == ["Learning", "Config", "Made by"]


def test_hostile_names_and_configs_are_text():
    history = [{**line, f"validation/{HOSTILE}": 1.0} for line in HISTORY]
    text = training_page(history, best_epoch=0, config=HOSTILE, name=HOSTILE, command=HOSTILE)
    assert "<script>alert" not in text
    assert text.count("<script>") == 1
