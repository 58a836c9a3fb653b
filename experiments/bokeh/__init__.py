"""Page, claims and goals of the Bokeh benchmark."""
