"""Recovery at work: events become jobs, and Celery workers run their steps."""
