"""The page on cross-fitting: its code runs and shows what the page says; its picture is drawn by a script."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/crossfitting.md").read_text(encoding="utf-8")


def test_code_of_the_page_runs_and_error_bars_become_true(capsys):
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "crossfitting.md", "exec"), names)
    trained, crossfitted, heads = re.findall(r"errors ([0-9.]+) times", capsys.readouterr().out)
    assert float(trained) > 1.15
    assert 0.9 < float(crossfitted) < 1.1
    assert 0.9 < float(heads) < 1.15


def test_picture_is_drawn_by_the_script():
    (name,) = re.findall(r"\(pictures/(.*?)\.png\)", PAGE)
    assert (ROOT / f"docs/pictures/{name}.png").is_file()
    assert f'PICTURES = {{"{name}"' in (ROOT / "experiments/pictures/crossfit_scene.py").read_text(encoding="utf-8")
