"""What an engine does, as pictures: the feed of what changes, recordings of it, and the page."""
