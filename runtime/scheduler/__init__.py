"""Scheduling: what runs in a step, in which order, and who gives way when memory runs out."""

from .scheduler import ScheduleBatch, ScheduledRequest, Scheduler

__all__ = ["ScheduleBatch", "ScheduledRequest", "Scheduler"]
