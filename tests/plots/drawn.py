"""What every picture is held to."""

from matplotlib.backends.backend_agg import FigureCanvasAgg


def assert_nothing_is_cut_off(figure):
    width, height = figure.get_size_inches()
    FigureCanvasAgg(figure).draw()
    box = figure.get_tightbbox()
    assert box.x0 >= -0.01
    assert box.y0 >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01
