"""What a notebook shows and touches: the live panel and the timeline, as widgets."""
