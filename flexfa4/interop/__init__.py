"""flexfa4 inside other libraries; each module needs that library installed."""
